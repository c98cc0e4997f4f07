"""Serve a finished run and measure it: print tables, and write them to deploy.json beside the run's result.json.

$ python -m mpx.deploy run=outputs/default/resnet20-digits-fp32-dense/seed0  # on this machine, by the fastest backend
$ python -m mpx.deploy run=FOLDER format=fp16 weights=2of4 'batch=[1,8,64]'  # with sparse kernels, on a GPU
$ python -m mpx.deploy --help                                                # every key
"""

import sys

import hydra
from omegaconf import DictConfig, OmegaConf

from mpx.channels import let_hydra_raise
from mpx.deploy.record import DEPLOYED, add_row, check_writable, completed_run
from mpx.errors import UserError
from mpx.printing import print_without_failing
from mpx.settings.deploy import DEPLOY, check_deploy
from mpx.settings.front_door import CONF, errors_in_one_line, read_words
from mpx.settings.reachable import no_gpu, require_gpu


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="deploy")
def job(cfg: DictConfig) -> None:
    with errors_in_one_line(DEPLOY, "mpx.deploy"):  # inside, because Hydra announces exceptions that leave this function
        settings = OmegaConf.to_container(cfg, resolve=True)
        check_deploy(settings)
        run(**settings)


def run(run: str, accelerator: str, **wishes) -> None:
    """Read, measure, write, show. Heavy imports start once the settings and the run's record are good."""
    folder, record = completed_run(run)
    check_writable(folder)
    require_gpu("accelerator", accelerator, there=not no_gpu())
    import torch

    from mpx.deploy.serve import serve
    from mpx.deploy.show import show

    there = torch.cuda.is_available()
    require_gpu("accelerator", accelerator, there=there)
    device = torch.device("cuda" if accelerator != "cpu" and there else "cpu")
    row = serve(folder, record, device, lambda part: print(f"measuring {part} …", file=sys.stderr, flush=True), **wishes)
    add_row(folder, row)
    show(row, record)
    print(f"written to {folder / DEPLOYED}")


def main() -> None:
    print_without_failing()
    let_hydra_raise()
    try:
        with errors_in_one_line(DEPLOY, "mpx.deploy"):
            if {"-m", "--multirun"} & set(sys.argv[1:]):
                raise UserError("mpx.deploy has no sweeps: start it once for each run and format. Leave out -m.")
            read_words(DEPLOY, "mpx.deploy")
            job()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
