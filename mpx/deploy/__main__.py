"""Measure how finished runs, or your own weights, are served: print tables, and write deploy.json and card.md
beside result.json.

$ python -m mpx.deploy run=outputs/default/resnet20-digits-fp32-dense/seed0  # on this machine, by the fastest backend
$ python -m mpx.deploy run=FOLDER format=fp16 weights=2of4 'batch=[1,8,64]'   # with sparse kernels, on a GPU
$ python -m mpx.deploy run=FOLDER 'format=[fp16,int8]' 'weights=[dense,2of4]' # four ways, and a table of them
$ python -m mpx.deploy 'run=outputs/default/*/seed*' 'format=[fp32,int8]'     # every run of a study
$ python -m mpx.deploy run=FOLDER 'export=[safetensors,pt2,onnx]'             # files that load without mpx
$ python -m mpx.deploy run=FOLDER predict=new.csv                             # its answers for your texts, or images
$ python -m mpx.deploy model=resnet18 data=cifar10 ckpt=weights.pt            # weights without a run
$ python -m mpx.deploy --help                                                 # every key
"""  # noqa: E501

import os
import sys
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from mpx.deploy.record import (
    CARD,
    PREDICTIONS,
    ROW_KEY,
    Row,
    add_row,
    check_writable,
    completed_run,
    own_files,
    writing,
)
from mpx.errors import UserError
from mpx.runs.folder import DEPLOYED
from mpx.settings.deploy import WORDS, check_deploy, listed
from mpx.settings.front_door import CONF, errors_in_one_line, start_once
from mpx.settings.reachable import no_gpu, require_gpu
from mpx.system.machine import heavy, keep_within_quota
from mpx.system.whole_file import write_whole

GROUPS = ("optimizer", "schedule")  # for which a model's file makes a choice


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="deploy")
def job(cfg: DictConfig) -> None:
    # inside, because Hydra announces exceptions that leave this function
    with errors_in_one_line(WORDS, "mpx.deploy"):
        settings: Any = OmegaConf.to_container(cfg, resolve=True)
        settings = {key: value for key, value in settings.items() if key not in GROUPS}
        check_deploy(settings)
        serve_all(**settings)


def serve_all(run: str | None, format: str | list[str], weights: str | list[str], **options: Any) -> None:
    """Serve each run in each format with each kind of weights. A way that fails, and a file that cannot be
    exported, do not stop the others; their errors are repeated at the end.

    Raises UserError if the only way fails; exits with 1 if something is missing.
    """
    pattern = run is not None and not os.path.isdir(run)
    runs: list[str | None] = [*sorted(filter(os.path.isdir, glob(str(run))))] if pattern else []
    ways = list(product(runs or [run], listed(format), listed(weights)))
    served: list[tuple[Path, dict[str, Any], Row]] = []
    errors: list[str] = []
    for name, fmt, kind in ways:
        where = " ".join(
            f"{key}={value}" for key, value in (("run", name), ("format", fmt), ("weights", kind)) if value
        )
        try:
            served.append(_serve(name, format=fmt, weights=kind, **options))
            refused = served[-1][2]["exports_refused"]
            errors += [f"{where}: export={file} is not possible: {why}" for file, why in refused.items()]
        except UserError as error:
            if len(ways) == 1:
                raise
            errors.append(f"{where}: {' '.join(str(error).split())}")
            print(f"error: {errors[-1]}", file=sys.stderr, flush=True)
    if len(served) > 1:
        from mpx.deploy.show import show_all

        show_all(served)
    for line in errors if served else ():  # otherwise they stand together already
        print(f"error: {line}", file=sys.stderr)
    if errors:
        sys.exit(1)


def _serve(
    name: str | None,
    accelerator: str,
    ckpt: str | None,
    out: str | None,
    model: Any = None,
    data: Any = None,
    **options: Any,
) -> tuple[Path, dict[str, Any], Row]:
    """Measure, show and write one way. Heavy imports start here, after the run's own files have been
    checked.

    Returns the folder and the record of the run, and the row.
    """
    folder, record = own_files(model, data, ckpt, out) if ckpt is not None else completed_run(str(name))
    check_writable(folder)
    require_gpu("accelerator", accelerator, there=not no_gpu())
    with heavy():
        from mpx.deploy.export import write
        from mpx.deploy.serve import serve
        from mpx.deploy.show import card, show
        from mpx.measure.devices import chosen

    keep_within_quota(1)

    def announce(part: str) -> None:
        print(f"measuring {part} …", file=sys.stderr, flush=True)

    row, files, predicted = serve(folder, record, chosen(accelerator), announce, ckpt=ckpt, **options)
    way = "-".join(row[key] for key in ROW_KEY)
    if ckpt is not None:
        row |= {"ckpt": ckpt, "config": record["config"]}
    show(row, record)  # first, since the folder may have become full
    row["exports"] = write(folder, way, files)
    add_row(folder, row)
    with writing(folder):
        if ckpt is None:
            write_whole(folder / CARD, card(folder, record))
        if predicted is not None:
            write_whole(folder / PREDICTIONS.format(way), predicted)
            print(f"predictions written to {folder / PREDICTIONS.format(way)}")
    print(f"written to {folder / DEPLOYED}" + (f" and {CARD}" if ckpt is None else ""))
    return folder, record, row


def main() -> None:
    start_once(job, WORDS, "mpx.deploy", "its keys take lists, as 'format=[fp16,int8]', and run= a pattern")


if __name__ == "__main__":
    main()
