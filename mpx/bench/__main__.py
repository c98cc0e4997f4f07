"""Measure this machine: print a table, draw it, and write it with the environment to outputs/bench/<what>.csv
and .json.

$ python -m mpx.bench what=formats  # what each number format can hold, and how fast it multiplies
$ python -m mpx.bench what=gemm                              # the limits of arithmetic; what=blas: of memory
$ python -m mpx.bench what=formats accelerator=cpu size=512  # on the CPU, smaller
$ python -m mpx.bench --help                                 # every key
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from mpx.settings.fields import BENCH
from mpx.settings.front_door import CONF, errors_in_one_line, start_once
from mpx.settings.reachable import no_gpu, require_gpu
from mpx.settings.values import check_value
from mpx.system.machine import check_compilers_cache, keep_within_quota
from mpx.system.whole_file import below_output_dir, to_text, try_writing, write_whole


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="bench")
def job(cfg: DictConfig) -> None:
    # inside, because Hydra announces exceptions that leave this function
    with errors_in_one_line(BENCH, "mpx.bench"):
        settings = {str(key): value for key, value in cfg.items()}
        for key, value in settings.items():
            check_value(key, value, BENCH, "mpx.bench")
        run(**settings)


def announce(part: str) -> None:
    print(f"measuring {part} …", file=sys.stderr, flush=True)


def run(what: str, accelerator: str, size: int | str, output_dir: str) -> None:
    """Measure, show, write, draw. Heavy imports start here, once the settings are checked."""
    check_compilers_cache()
    require_gpu("accelerator", accelerator, there=not no_gpu())
    from mpx.measure.devices import chosen
    from mpx.measure.environment import environment
    from mpx.measure.exclusive import CpuUse, ExclusivityChecks
    from mpx.render.picture import save

    keep_within_quota(1)
    device = chosen(accelerator)
    folder = Path(output_dir) / "bench"
    with below_output_dir(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder)  # fails before minutes of measuring
    benchmark = importlib.import_module(f"mpx.bench.{what}")
    checks, cpu = ExclusivityChecks(device), CpuUse()
    checks.look()
    rows = list(benchmark.measure(device, size, announce))
    alone, reason = checks.verdict(cpu.by_others())
    about: dict[str, Any] = {
        "what": what,
        "device": device.type,
        "size": size,
        "exclusive": alone,
        "exclusive_reason": reason,
        "environment": environment(),
    }
    record = json.dumps({"schema_version": 1} | about | {"rows": rows}, indent=2, allow_nan=False) + "\n"
    about["folder"] = folder
    benchmark.show(about, rows)  # before writing, which a full disk refuses
    with below_output_dir(folder):
        write_whole(folder / f"{what}.json", record)
        write_whole(folder / f"{what}.csv", to_text(list(rows[0]), rows))
        drawn = benchmark.plot(about, rows)
        files = save(drawn, folder) if drawn else []
    print(f"written to {folder / what}.csv and .json" + (f", drawn in {files[1].name}" if files else ""))


def main() -> None:
    start_once(job, BENCH, "mpx.bench", "benchmarks at the same time would disturb one another")


if __name__ == "__main__":
    main()
