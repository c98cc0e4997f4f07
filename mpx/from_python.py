"""mpx.run and mpx.judge: what `python -m mpx.train` and `python -m mpx.compare` do, called from Python or a notebook."""

import copy
import gc
import os
import random
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from mpx import sweep
from mpx.compare.comparison import Comparison
from mpx.errors import UserError
from mpx.imports import check_compilers_cache
from mpx.runs import outcome, signals
from mpx.settings import check
from mpx.settings.compare import COMPARE, check_compare
from mpx.settings.front_door import CONF, checked_words, errors_as_user_error, expect_schemas, typed
from mpx.settings.project import with_project
from mpx.settings.translate import KEYS


class RunRecord(dict):
    """The content of result.json. folder: where it was written."""

    def __init__(self, record: dict[str, Any], folder: Path):
        super().__init__(record)
        self.folder = folder


def run(settings: Sequence[str] = ()) -> RunRecord:
    """Train, test and record one setting in this process, as `python -m mpx.train` does, and return its record.

        for seed in range(3):
            record = mpx.run(["precision=amp", f"seed={seed}"])
            print(record["metrics"]["test/accuracy"], record.folder)

    settings: KEY=VALUE words, as on the command line.
    Returns result.json as a dict (docs/run-folder.md lists its fields); `record.folder` is the run's folder. It also returns a run that
    diverged, because that is a result, and a finished run that `if_exists=skip` finds. Random states, PyTorch's switches, signal handlers,
    warnings and the environment are afterwards as before.
    Raises UserError with one line for a mistake, the model's own exception if the run fails otherwise, and KeyboardInterrupt after Ctrl-C.
    Once training has begun, result.json is written in each of these cases.
    """
    words = _words(settings)
    _check_torch()
    with _as_found(), errors_as_user_error(), _composed("train", words) as cfg:
        sweep.check_experiment(HydraConfig.get())
        check(cfg, typed(HydraConfig.get()))
        _check_one_process(cfg)
        check_compilers_cache()
        record, folder, ending = outcome.run_here(cfg, command=shlex.join(["python", "-m", "mpx.train", *words]))
    if ending is not None and ending.status == "interrupted":
        if ending.code == signals.TERMINATED:
            signal.raise_signal(signal.SIGTERM)  # to the handler that was there before
        raise KeyboardInterrupt
    if ending is not None and ending.status == "failed":
        raise ending.bug if ending.bug is not None else UserError(ending.line)
    return RunRecord(record, folder)


def judge(study: str = "default", **settings: Any) -> Comparison:
    """Compare the runs of a study as `python -m mpx.compare` does: print tables and verdicts, write the report, return the comparison.

        comparison = mpx.judge("default", margin=0.005)
        print(comparison.groups[0].train_verdict)

    study: the name that the runs were trained under (study=). settings: control, metric, metric_goal, margin, margin_is, margin_for,
    confidence, note, results, output_dir; `python -m mpx.compare --help` explains them.
    Returns a Comparison; each of its `groups` is one model and data set, with `rows` (one per setting, the control first), `train_verdict`
    and `serve_verdict`.
    Raises UserError for a mistake.
    """
    from mpx.compare.__main__ import run as compare

    if unknown := settings.keys() - COMPARE.keys():
        raise UserError(f"{min(unknown)} is not a setting of mpx.judge. It has {', '.join(COMPARE)}.")
    with _as_found(), errors_as_user_error(), _composed("compare", []) as cfg:
        given = OmegaConf.to_container(cfg, resolve=True) | {"study": study} | settings
        given = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in given.items()}
        check_compare(given, [f"{key}=" for key in settings])
        return compare(**given)


def _words(settings: Sequence[str]) -> list[str]:
    """Raises UserError for anything but a list of settings."""
    if isinstance(settings, str) or not all(isinstance(word, str) for word in settings):
        raise UserError(f'mpx.run({settings!r}): give a list of settings. For example mpx.run(["precision=amp", "seed=1"]).')
    if (option := next((word for word in settings if word.startswith("-")), None)) is not None:
        way = "Call mpx.run in a loop, or start python -m mpx.train -m …" if option in ("-m", "--multirun") else "Leave it out"
        raise UserError(f"{option}: mpx.run trains one setting, and takes no options. {way}.")
    return with_project(checked_words(settings, KEYS, "mpx.train", CONF))


def _check_torch() -> None:
    """Raise UserError for a state of the caller's PyTorch that would change the formats or the place of a run's tensors, or stop it."""
    torch = sys.modules.get("torch")  # without it, there is no such state
    if torch is None:
        return
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise UserError("mpx.run within torch.autocast: call it outside, and choose the formats by precision=, as precision=amp_bf16.")
    if torch.is_inference_mode_enabled():
        raise UserError("mpx.run within torch.inference_mode: call it outside, because a training needs gradients.")
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise UserError(f"mpx.run with {dtype} as PyTorch's default: call torch.set_default_dtype(torch.float32) before it.")
    if (device := torch.get_default_device()).type != "cpu":
        raise UserError(
            f"mpx.run with {device} as PyTorch's default: call torch.set_default_device(None), and choose by trainer.accelerator=."
        )


def _check_one_process(cfg: DictConfig) -> None:
    """Further devices are further processes, which would be started with the command line of this one."""
    devices = cfg.trainer.devices
    if devices != 1 and not (OmegaConf.is_list(devices) and len(devices) == 1):
        shown = list(devices) if OmegaConf.is_list(devices) else devices
        raise UserError(f"trainer.devices={shown}: mpx.run trains in this process, on one device. Use python -m mpx.train for several.")


@contextmanager
def _composed(name: str, words: list[str]) -> Iterator[DictConfig]:
    """The configuration of a command, while Hydra knows of it. Another program's Hydra is put aside."""
    hydra, config = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    try:
        expect_schemas()
        with initialize_config_dir(str(CONF), job_name=f"mpx.{name}", version_base="1.3"):
            cfg = compose(name, words, return_hydra_config=True)
            HydraConfig.instance().set_config(copy.deepcopy(cfg))
            with open_dict(cfg):
                del cfg["hydra"]
            yield cfg
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = hydra, config


@contextmanager
def _as_found() -> Iterator[None]:
    """After the block, what a run changes of the process is as before it. Raises UserError outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise UserError("mpx.run in a thread: only the main thread can handle the signals that end a run. Call it there.")
    with ExitStack() as stack:
        # The objects of a run refer to one another. Left as garbage, they hold the device's memory, and a loader's worker, a fork, that
        # collects their CUDA events dies of it.
        stack.callback(gc.collect)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "IProgress not found")  # tqdm in a notebook without ipywidgets; mpx's bar needs none
        stack.callback(random.setstate, random.getstate())  # some imports draw
        stack.callback(_restore_environment, dict(os.environ))
        stack.enter_context(signals.as_found())
        yield


def _restore_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
