"""Measure how finished runs, or your own weights, are served: print tables, and write deploy.json and card.md beside result.json.

$ python -m mpx.deploy run=outputs/default/resnet20-digits-fp32-dense/seed0   # on this machine, by the fastest backend
$ python -m mpx.deploy run=FOLDER format=fp16 weights=2of4 'batch=[1,8,64]'   # with sparse kernels, on a GPU
$ python -m mpx.deploy run=FOLDER 'format=[fp16,int8]' 'weights=[dense,2of4]' # four ways, and a table of them
$ python -m mpx.deploy 'run=outputs/default/*/seed*' 'format=[fp32,int8]'     # every run of a study
$ python -m mpx.deploy -m run=A,B format=fp16,int8                            # a sweep
$ python -m mpx.deploy run=FOLDER 'export=[safetensors,pt2,onnx]'             # files that load without mpx
$ python -m mpx.deploy model=resnet18 data=cifar10 ckpt=weights.pt            # weights without a run
$ python -m mpx.deploy --help                                                 # every key
"""

import sys
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mpx import ctrl_c
from mpx.deploy.jobs import serve_all
from mpx.deploy.record import Row
from mpx.environment_variables import let_hydra_raise
from mpx.errors import UserError
from mpx.printing import print_without_failing
from mpx.settings.deploy import WORDS, check_chosen, check_deploy
from mpx.settings.front_door import CONF, errors_in_one_line, multirun, multirun_first, read_words, typed

TRAINING = ("optimizer", "schedule")  # groups for which a model's file makes a choice


class Calls:
    """Collects the rows and exit codes of the calls that a command starts: one, or several in a sweep. A failed call stops no other."""

    def __init__(self):
        self.rows: list[tuple[str, Row]] = []
        self.codes: list[int] = []

    def start(self, cfg: DictConfig) -> None:
        """Hydra calls this once, or in a sweep once per job."""
        try:
            with errors_in_one_line(WORDS, "mpx.deploy"):  # inside, because Hydra announces exceptions that leave this function
                settings = {key: value for key, value in OmegaConf.to_container(cfg, resolve=True).items() if key not in TRAINING}
                check_deploy(settings, () if multirun() else typed(HydraConfig.get()))  # another job of a sweep may read a setting
                ctrl_c.raises()
                rows, failed = serve_all(**settings)
                self.rows += rows
                self.codes.append(int(failed > 0))
        except SystemExit as ended:
            self.codes.append(ended.code)

    def end(self) -> int:
        """Print a table if there are several rows. Returns the exit code."""
        if len(self.rows) > 1:
            from mpx.deploy.show import show_all

            show_all(self.rows)
        return self.codes[0] if len(self.codes) == 1 else int(any(self.codes))


def main() -> None:
    print_without_failing()
    let_hydra_raise()
    calls = Calls()
    try:
        with errors_in_one_line(WORDS, "mpx.deploy"), ExitStack() as aside:
            multirun_first()
            if multirun():
                _prepare_sweep(aside)
            if (word := next((word for word in sys.argv[1:] if word.lstrip("+").startswith(TRAINING)), None)) is not None:
                raise UserError(f"{word}: {word.split('=')[0]} is for training, and mpx.deploy trains nothing. Leave it out.")
            check_chosen(sys.argv[1:])
            read_words(WORDS, "mpx.deploy")
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="deploy")(calls.start)()
        if code := calls.end():
            sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(130)


def _prepare_sweep(aside: ExitStack) -> None:
    """Send the files that Hydra writes for a sweep to a temporary folder, since nobody reads them."""
    if any(word.startswith("hydra/launcher=") for word in sys.argv[1:]):
        raise UserError("hydra/launcher: mpx.deploy measures one after another, so that nothing else uses the device. Leave it out.")
    ctrl_c.raises()
    folder = aside.enter_context(TemporaryDirectory(prefix="mpx-deploy-"))
    OmegaConf.register_new_resolver("mpx.aside", lambda: folder, replace=True)


if __name__ == "__main__":
    main()
