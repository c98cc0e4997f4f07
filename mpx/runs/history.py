"""What a run continues from: it is checked before training, and each new checkpoint keeps what the next part of the run has to know."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import nn

from mpx.errors import UserError
from mpx.runs.checkpoint import Best
from mpx.runs.reading import continuing, read_checkpoint
from mpx.runs.trained_as import settings_unlike

PROGRESS = ("ready", "started", "processed", "completed")  # Lightning's counts, in their order
KINDS = (torch.Tensor, dict, list | tuple, str, int | float)


class History(Callback):
    """Checks the checkpoint that a run continues from, and keeps the list of steps at which the run was continued.

    setting: the settings that training depends on. trained_as: those of the checkpoint; {} if it does not say. before: those of all earlier
    parts that are not this run's.
    data: the checksums of the run's data, which are those of the checkpoint unless `other_data` is allowed.
    pruned: the layers that were pruned in the checkpoint. pruned_by: their pattern and recipe; None if the checkpoint is of a dense run.
    """

    def __init__(
        self, resume_from: Path | None, model: nn.Module, optimizer: str, setting: dict[str, Any], data: list[int], *, other_data: bool
    ):
        self.steps: list[int] = []
        self.setting, self.data = setting | {"training data (checksum)": f"{data[0]:08x}"}, data
        self.trained_as: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self.pruned: set[str] = set()
        self.pruned_by: tuple[str, str] | None = None
        if resume_from is not None:
            checkpoint = read_checkpoint(resume_from, model)
            with continuing(resume_from):
                _refuse_other_optimizer(resume_from, checkpoint["optimizer_states"], optimizer)
                _refuse_no_optimizer_state(checkpoint)
                _refuse_not_finite(model, checkpoint["state_dict"])
                if not other_data:
                    _refuse_other_data(resume_from, changed_data(checkpoint, data))
                self.steps, self.trained_as, self.before = _earlier(checkpoint, self.setting)
                for step in self.steps:
                    _refuse_other_counts(0, step, "resumed_from_steps")
                pruning = checkpoint.get("callbacks", {}).get("Pruning", {})
                self.pruned, self.pruned_by = set(pruning.get("masks", ())), pruning["by"] if pruning else None

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Raises ValueError for counts that Lightning would take as 0, so that the run would repeat its steps, and for parts of a
        callback's state that have another type."""
        loops = checkpoint["loops"]["fit_loop"]
        _refuse_other_counts(trainer.fit_loop.state_dict(), loops, "loops")
        if "mpx" in checkpoint and not loops["state_dict"].get("combined_loader"):
            raise ValueError("it does not say how far the epoch's data were read")
        if changed_data(checkpoint, self.data):  # then its validations, and the best of them, are of other data
            pl_module.forget_results(trainer)
            for best in (callback for callback in trainer.callbacks if isinstance(callback, Best)):
                checkpoint["callbacks"].pop(best.state_key, None)
        for callback in trainer.callbacks:
            if callback.state_key in checkpoint.get("callbacks", {}):
                _refuse_other_kinds(callback.state_dict(), checkpoint["callbacks"][callback.state_key], type(callback).__name__)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["mpx"] = {"resumed_from_steps": self.steps, "setting": self.setting, "before": self.before, "data": self.data}


class Continued(Callback):
    """As History, for a project: it judges its own state. Keeps the steps at which the run was continued, and the settings."""

    def __init__(self, resume_from: Path | None, setting: dict[str, Any]):
        self.steps: list[int] = []
        self.setting, self.trained_as, self.before = setting, {}, {}
        if resume_from is not None:
            with continuing(resume_from):
                # A project's checkpoint may hold objects of its own, such as hyperparameters; its code runs in any case.
                checkpoint = torch.load(resume_from, map_location="meta", weights_only=False)
                self.steps, self.trained_as, self.before = _earlier(checkpoint, setting)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["mpx"] = {"resumed_from_steps": self.steps, "setting": self.setting, "before": self.before}


def _earlier(checkpoint: dict[str, Any], ours: dict[str, Any]) -> tuple[list[int], dict[str, Any], dict[str, Any]]:
    """(the steps at which the run was continued, with that of this checkpoint; the settings that it was trained with; those of all earlier
    parts that are not `ours`)."""
    kept = checkpoint.get("mpx", {})  # a checkpoint of Lightning alone has none
    theirs = dict(kept.get("setting", {}))
    steps = [*kept.get("resumed_from_steps", []), checkpoint["global_step"]]
    return steps, theirs, settings_unlike(dict(kept.get("before", {})), ours) | settings_unlike(theirs, ours)


def _refuse_other_counts(expected: Any, found: Any, where: str) -> None:
    """expected: what this run would save now. `found` needs the same keys, and counts that agree: a step is started before it completes."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            _refuse_other_counts(value, found[key], key)
        counts = [found[key] for key in PROGRESS if key in expected]
        if counts != sorted(counts, reverse=True) or (counts and counts[0] - counts[-1] > 1):
            raise ValueError(f"its {where} counts {found}")
    elif not isinstance(found, int) or found < 0:
        raise ValueError(f"its {where} is {found!r}, not a count")


def _refuse_other_kinds(expected: dict[str, Any], found: dict[str, Any], where: str) -> None:
    """expected: the callback's present state; None in it means not known yet."""
    if not isinstance(found, dict):
        raise ValueError(f"its {where} is a {type(found).__name__}")
    if expected and not found:  # Lightning would take it for the state of a callback that has none
        raise ValueError(f"its {where} is empty")
    for key, value in expected.items():
        kind = next((kind for kind in KINDS if isinstance(value, kind)), object)
        if key in found and not isinstance(found[key], kind):
            raise ValueError(f"its {where} has a {type(found[key]).__name__} as {key}")


def _refuse_not_finite(model: nn.Module, theirs: dict[str, torch.Tensor]) -> None:
    for name, _ in model.named_parameters():
        if not torch.isfinite(theirs[name]).all():
            raise ValueError(f"the weights of {name} are infinite or NaN")


def _refuse_other_optimizer(path: Path, states: list[dict[str, Any]], ours: str) -> None:
    settings = states[0]["param_groups"][0]
    theirs = next((name for name, own in (("adamw", "betas"), ("sgd", "momentum")) if own in settings), ours)
    if theirs != ours:
        raise UserError(f"ckpt_path={path} was trained with optimizer={theirs}, this command has optimizer={ours}. Use optimizer={theirs}.")


def changed_data(checkpoint: dict[str, Any], ours: list[int]) -> str:
    """`train, val and test`: the splits that are not those of the checkpoint, as far as it has their checksums. ours: those of the data."""
    theirs = checkpoint.get("mpx", {}).get("data", ours)
    changed = [name for name, one, other in zip(("train", "val", "test"), theirs, ours, strict=True) if one != other]
    return " and ".join(filter(None, (", ".join(changed[:-1]), *changed[-1:])))


def _refuse_other_data(path: Path, changed: str) -> None:
    if changed:
        raise UserError(
            f"the {changed} data are no longer those that {path} was trained on. Put the old files back, start again with "
            f"if_exists=overwrite, or continue on the new ones all the same with 'ckpt_path=\"{path}\"'."
        )


def _refuse_no_optimizer_state(checkpoint: dict[str, Any]) -> None:
    """Adam without its moments, or SGD without its momentum, would take wrong steps and say nothing."""
    counted = checkpoint.get("ModePrecision", {})
    taken = counted.get("steps", checkpoint["global_step"]) - counted.get("loss_scale", {}).get("counts", {}).get("skipped", 0)
    (optimizer,) = checkpoint["optimizer_states"]
    if taken and not optimizer["state"] and optimizer["param_groups"][0].get("momentum") != 0:
        raise ValueError(f"its optimizer has no state after {taken} steps")
