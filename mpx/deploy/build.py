"""Build the model of a finished run, or the user's own: trained, in evaluation mode, then in the format in which it is served."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.data import Data, load
from mpx.errors import UserError
from mpx.models import build
from mpx.models.probe import sample
from mpx.precision.modes import MODES, Mode, emulated
from mpx.private.torch_modules import NORM_WITH_STATISTICS
from mpx.runs.folder import LAST, RESULT
from mpx.runs.history import changed_data
from mpx.runs.weights import has_averages, load_averages, load_weights, read_checkpoint
from mpx.settings.data import OWN_FAMILIES
from mpx.settings.deploy import listed
from mpx.settings.target import named

MODE = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16_true", "bf16": "bf16_true"}  # format -> precision mode
HALF = (torch.float16, torch.bfloat16)
DAMAGED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # raised for settings and weights that mpx did not write


@dataclass(frozen=True)
class Trained:
    """A trained model and its data. model: as it was tested after training; in FP32, on the CPU, in evaluation mode."""

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
    return f"this {name} has no instructions for {fmt.upper()}"


def _mode(fmt: str, device: torch.device) -> Mode:
    return MODES[MODE.get(fmt, "fp32" if device.type == "cpu" else "bf16_true")]  # GPUs with BF16 have INT8


def trained(folder: Path, record: dict[str, Any], target: str | list[str] | None) -> Trained:
    """Build the model of the run in `folder` and load its weights. Runs no code from the folder.

    target: what a model=custom and data=custom import, as the user confirms it.
    Raises UserError for settings or files that mpx did not write.
    """
    config = record["config"]
    _refuse_code(folder, config, [] if target is None else listed(target))
    try:
        try:
            data = load(config["data"])
            model = build(config["model"], data.spec)
        except UserError as error:
            problem = str(error).rstrip(".").rpartition(". ")[0] or error  # its last sentence asks for other settings
            raise UserError(
                f"run={folder}: {RESULT}: {problem}. These settings come from that file alone. Put back the data or code that it names, "
                "start mpx.deploy where the training was started, or give the folder of another run."
            ) from error
        checkpoint = read_checkpoint(folder / LAST, model, "run")
        # Published sets do not change, and their images, resized on another machine, may differ in a bit.
        if config["data"].get("family") in OWN_FAMILIES and (changed := changed_data(checkpoint, data.checksums)):
            raise UserError(
                f"run={folder}: the {changed} data are no longer those that it was trained on, so what it serves cannot be "
                "judged. Put the old files back."
            )
        model.load_state_dict(checkpoint["state_dict"])
        if config["trainer"].get("ema_decay") is not None:  # then the run was tested with the averages
            load_averages(checkpoint, model)
    except UserError:
        raise
    except DAMAGED as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise UserError(f"run={folder}: its {RESULT} or {LAST} is damaged ({reason}). Give the folder of another run.") from error
    return Trained(model.eval().requires_grad_(False), data)


def own(ckpt: str, config: dict[str, Any]) -> Trained:
    """Build the model of the user's settings and load the tensors of the user's file. Raises UserError if they are another model's."""
    data = load(config["data"])
    model = build(config["model"], data.spec)
    if has_averages(load_weights(Path(ckpt), model, "ckpt")):
        raise UserError(f"ckpt={ckpt} is of a run with trainer.ema_decay, whose averages mpx serves. Use run=FOLDER.")
    return Trained(model.eval().requires_grad_(False), data)


def refuse_changing(model: nn.Module, x: Tensor) -> None:
    """Raise UserError if calls change what later calls return: each measuring call would change the accuracy."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    first, second = model(x), model(x)
    if torch.equal(first, second):
        return
    changed = (name for name, buffer in model.named_buffers() if name in before and not torch.equal(buffer, before[name]))
    if name := next(changed, None):  # otherwise it draws random numbers
        raise UserError(
            f"the model changes its buffer {name} at each call, also in evaluation, so what it returns depends on the calls before. "
            "Change it in training alone (if self.training)."
        )


def _refuse_code(folder: Path, config: dict[str, Any], confirmed: list[str]) -> None:
    """Raise UserError if building the model or loading the data would import or run code that the record names and the user does not."""
    model = config["model"]
    custom = [group for group in ("model", "data") if config[group].get("family") == "custom"]
    theirs = dict(target for group in custom for target in named(group, config[group]))
    if (other := next((key for key, name in theirs.items() if name not in confirmed), None)) is not None:
        every = ",".join(map(str, theirs.values()))
        raise UserError(
            f"run={folder} has {other}={theirs[other]}. Importing it runs its code: confirm that by "
            f"target={every if len(theirs) == 1 else f'[{every}]'}."
        )
    if (more := next((name for name in confirmed if name not in theirs.values()), None)) is not None:
        raise UserError(
            f"target={more} is for runs with model=custom or data=custom that import it, as run={folder} does not. Leave it out."
        )
    if model.get("family") == "hf" and model.get("kwargs"):
        from transformers import CONFIG_MAPPING

        # Arguments of such a model could ask transformers to run code from the hub.
        if model.get("pretrained") or model.get("name") not in CONFIG_MAPPING:
            raise UserError(f"run={folder}: a pretrained model=hf with model.kwargs cannot be served. Use a run without model.kwargs.")


def in_format(found: Trained, mode: Mode, device: torch.device) -> nn.Module:
    """A copy of the model on `device` in the format of `mode`. Its convolutions have the memory layout of Tensor Cores.

    In FP32, what the user made FP64 or complex stays so, as in training, and 16 bits become 32. Raises UserError for complex weights in 16
    bits.
    """
    served = copy.deepcopy(found.model).to(device)
    if mode.weights == torch.float32:
        for value in (*served.parameters(), *served.buffers()):
            value.data = value.data.float() if value.dtype in HALF else value.data
    else:
        _to_16_bits(served, found.model, mode.weights)
    convolves = any(isinstance(layer, nn.Conv2d) for layer in served.modules())
    if device.type == "cuda" and mode.narrowest != "fp32" and convolves and found.data.spec.kind == "image":
        _channels_last(served, cast(sample(found.data.spec), mode).to(device))
    return served


def _to_16_bits(served: nn.Module, model: nn.Module, dtype: torch.dtype) -> None:
    """Norms with running statistics stay FP32, since their variances may exceed FP16's range. PyTorch applies them to any format."""
    if name := next((name for name, value in model.state_dict().items() if value.is_complex()), None):
        kind = str(dtype).removeprefix("torch.")
        raise UserError(f"its {name} is complex, and in {kind} would lose its imaginary part. Use format=fp32.")
    served.to(dtype)
    for name, layer in model.named_modules():
        if isinstance(layer, NORM_WITH_STATISTICS):
            served.get_submodule(name).float().load_state_dict(layer.state_dict())


def _channels_last(model: nn.Module, x: Tensor) -> None:
    """Lay the filters out as channels_last, unless the model then fails: many have `x.view(len(x), -1)` after a convolution."""
    try:
        with torch.no_grad():
            model.to(memory_format=torch.channels_last)(x.repeat(2, 1, 1, 1))
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)


def cast(x: Tensor, mode: Mode) -> Tensor:
    """The input in the mode's format; token ids stay integers."""
    return x.to(mode.weights) if x.is_floating_point() else x
