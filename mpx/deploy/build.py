"""The model that is served, and its data: of a finished run or the user's own; converted to a number
format.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.data import Data, load
from mpx.data.datamodule import choose_loader
from mpx.data.loaders import EvalLoader
from mpx.data.readers import reader_of
from mpx.data.spec import Spec
from mpx.data.splits import Images, Texts, Windows
from mpx.data.tasks import Meters
from mpx.deploy.backends import Call
from mpx.errors import UserError, first_line
from mpx.models import build
from mpx.models.probe import sample
from mpx.precision.modes import MODES, Mode, emulated, lacks_instructions
from mpx.private.torch_modules import NORM_WITH_STATISTICS
from mpx.runs.folder import LAST, RESULT
from mpx.runs.history import changed_data
from mpx.runs.weights import has_averages, load_averages, load_weights, read_checkpoint
from mpx.settings.data import OWN_FAMILIES
from mpx.settings.deploy import listed
from mpx.settings.target import named

MODE = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16_true", "bf16": "bf16_true"}  # format -> precision mode
# dtype of the weights -> what casts a model's floating point numbers to it and leaves complex ones alone
CAST = {
    torch.float32: nn.Module.float,
    torch.float16: nn.Module.half,
    torch.bfloat16: nn.Module.bfloat16,
}
Settings = dict[str, Any]
# for settings that mpx did not write
DAMAGED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Trained:
    """A trained model and its data. model: as it was tested after training; in FP32, on the CPU, in
    evaluation mode.
    """

    model: nn.Module
    data: Data


def mode_of(fmt: str, device: torch.device) -> Mode:
    """The precision mode of a served model, apart from its INT8 and FP8 products.

    Raises UserError for a format that the device lacks or has no instructions for.
    """
    if (reason := no_instructions(fmt, device)) is not None:
        raise UserError(f"format={fmt}: {reason}, so serving in it would be slow. Use format=fp32.")
    return _mode(fmt, device)


def no_instructions(fmt: str, device: torch.device) -> str | None:
    """Why nothing is served in `fmt` on `device`; None if it can be."""
    if not emulated(MODES["fp8"] if fmt == "fp8" else _mode(fmt, device), device, "auto"):
        return None
    name = "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return lacks_instructions(fmt, name)


def _mode(fmt: str, device: torch.device) -> Mode:
    # of int8, the rest of the model; a GPU with BF16 has INT8 products, too
    return MODES[MODE.get(fmt, "fp32" if device.type == "cpu" else "bf16_true")]


def of_run(folder: Path, config: Settings, target: str | list[str] | None) -> Trained:
    """Build the model of the run in `folder` and load its weights. Runs no code from the folder.

    config: the run's settings. target: what a model=custom and data=custom import, as the user confirms it.
    Raises UserError for settings or files that mpx did not write.
    """
    _refuse_code(folder, config, [] if target is None else listed(target))
    try:
        data = load(config["data"])
        model = build(config["model"], data.spec)
    except DAMAGED as error:
        reason = (
            first_line(error)
            if isinstance(error, UserError)
            else (f"{type(error).__name__}: {first_line(error)}")
        )
        raise UserError(
            f"run={folder}: its model and data cannot be made from its {RESULT} ({reason}). Put back the "
            "data or code that it names, or start mpx.deploy where the training was started."
        ) from error
    checkpoint = read_checkpoint(folder / LAST, model, "run")
    # Published sets do not change, and their images, resized on another machine, may differ in a bit.
    if config["data"].get("family") in OWN_FAMILIES and (changed := changed_data(checkpoint, data.checksums)):
        raise UserError(
            f"run={folder}: the {changed} data are no longer those that it was trained on, so what it serves "
            "cannot be judged. Put the old files back."
        )
    model.load_state_dict(checkpoint["state_dict"])
    if config["trainer"].get("ema_decay") is not None:  # then the run was tested with the averages
        load_averages(checkpoint, model)
    return Trained(model.eval().requires_grad_(False), data)


def own(ckpt: str, config: Settings) -> Trained:
    """Build the model of the user's settings and load the user's weights. Raises UserError if they are
    another model's.
    """
    data = load(config["data"])
    model = build(config["model"], data.spec)
    if has_averages(load_weights(Path(ckpt), model, "ckpt")):
        raise UserError(
            f"ckpt={ckpt} is of a run with trainer.ema_decay, whose averages mpx serves. Use run=FOLDER."
        )
    return Trained(model.eval().requires_grad_(False), data)


def _refuse_code(folder: Path, config: Settings, confirmed: list[str]) -> None:
    """Raise UserError if building would import or run code that the record names and the user does not
    confirm.
    """
    custom = [group for group in ("model", "data") if config[group].get("family") == "custom"]
    targets = dict.fromkeys(str(target) for group in custom for _, target in named(group, config[group]))
    if targets.keys() - set(confirmed):
        wanted = f"[{','.join(targets)}]" if len(targets) > 1 else "".join(targets)
        raise UserError(f"run={folder} runs code of {wanted}. Confirm that by target={wanted}.")
    model = config["model"]
    if model.get("family") == "hf" and model.get("kwargs"):
        from transformers import CONFIG_MAPPING

        # Arguments of such a model could ask transformers to run code from the hub.
        if model.get("pretrained") or model.get("name") not in CONFIG_MAPPING:
            raise UserError(
                f"run={folder}: a pretrained model=hf with model.kwargs cannot be served. Use a run "
                "without model.kwargs."
            )


def in_format(trained: Trained, mode: Mode, device: torch.device) -> nn.Module:
    """A copy of the model on `device` in the format of `mode`. Its convolutions have the memory layout of
    Tensor Cores.

    Norms with running statistics are FP32: variances may exceed FP16's range. PyTorch applies them to any
    format.
    """
    served = CAST[mode.weights](copy.deepcopy(trained.model).to(device))
    for name, layer in trained.model.named_modules():
        if isinstance(layer, NORM_WITH_STATISTICS):
            served.get_submodule(name).float().load_state_dict(layer.state_dict())
    convolves = any(isinstance(layer, nn.Conv2d) for layer in served.modules())
    if device.type == "cuda" and mode.narrowest != "fp32" and convolves and trained.data.spec.kind == "image":
        _channels_last(served, cast(sample(trained.data.spec), mode).to(device))
    return served


def _channels_last(model: nn.Module, x: Tensor) -> None:
    """Lay the filters out as channels_last, unless the model then fails: many have `x.view(len(x), -1)` after
    a convolution.
    """
    try:
        with torch.no_grad():
            model.to(memory_format=torch.channels_last)(x.repeat(2, 1, 1, 1))
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)


def cast(x: Tensor, mode: Mode) -> Tensor:
    """The input in the mode's format; token ids stay integers."""
    return x.to(mode.weights) if x.is_floating_point() else x


class Samples:
    """A split of a data set on `device`. Its `reader`, which may have worker processes, must be closed."""

    def __init__(self, split: Images | Texts | Windows, spec: Spec, settings: Settings, device: torch.device):
        self.spec, self.split, self.device = spec, split, device
        workers = settings["workers"]
        loader, _ = choose_loader(settings["loader"], [split], device, workers)
        self.reader = reader_of(loader, split, 0, device, workers)

    def __len__(self) -> int:
        return len(self.split)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sample once, in batches of `size` and a smaller last one."""
        return iter(EvalLoader(self.reader, len(self.split), size))

    def batch(self, size: int) -> Tensor:
        """The inputs of the first `size` samples, which repeat if there are fewer."""
        return next(iter(self.reader.batches(0, [torch.arange(size) % len(self.split)])))[0]

    def evaluate(self, call: Call, size: int) -> dict[str, float | None]:
        """The metrics that the training's test logs, in batches of `size` and a smaller last one. None in
        place of infinities and NaN, which JSON cannot hold.
        """
        meters = Meters(self.spec.task, self.spec.classes).to(self.device)
        for x, y in self.batches(size):
            meters.add(call(x), y)
        found = {f"test/{name}": value.item() for name, value in meters.take(self.spec.kind).items()}
        return {name: value if math.isfinite(value) else None for name, value in found.items()}
