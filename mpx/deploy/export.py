"""Export a served model to files that load without mpx: weights (safetensors), a program of torch.export
(pt2), an ONNX graph.

The files are made on the CPU, so that every machine can load them. Programs and graphs take batches of any
size.
"""

import copy
import io
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.deploy import onnx
from mpx.deploy.backends import relative_error
from mpx.deploy.products import FP8, INT8_LARGEST, fp8_matrix, int8_rows
from mpx.deploy.record import EXPORTS
from mpx.errors import UserError
from mpx.settings.deploy import QUANTISED
from mpx.system.whole_file import whole_folder, write_whole

EIGHT_BITS = {"int8": "int8, one scale for each output", "fp8": "float8_e4m3fn, one scale for each matrix"}


@dataclass(frozen=True)
class File:
    """content: of the file. about: for deploy.json. beside: other files that loading needs, by name."""

    content: bytes
    about: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)


def check_packages(kinds: Collection[str]) -> None:
    if "onnx" in kinds and (reason := onnx.missing()) is not None:
        raise UserError(f"export=onnx: {reason}. Install them, or leave it out.")


def program(model: nn.Module, x: Tensor, reference: Tensor) -> File:
    """A program of torch.export. model, x: on the CPU, in the served format. reference: the outputs for x in
    FP32. Raises RuntimeError if the model cannot be exported.
    """
    file = io.BytesIO()
    with onnx.as_runtime_errors(), onnx.quiet():
        shapes = ({0: torch.export.Dim("batch", min=1)},)
        torch.export.save(torch.export.export(model, (two_of(x),), dynamic_shapes=shapes), file)
        file.seek(0)
        error = relative_error(torch.export.load(file).module()(x), reference)
    return File(file.getvalue(), {"relative_error": error})


def two_of(x: Tensor) -> Tensor:
    """Two samples: a single one would fix the batch size to 1."""
    return x.repeat_interleave(2, dim=0)[:2]


def weights_file(
    model: nn.Module, fmt: str, ranges: Mapping[str, float | None], config: dict[str, Any]
) -> File:
    """A safetensors file. model: on the CPU, in the format of the weights that do not have 8 bits. config: of
    the run.

    ranges: of the inputs of the layers whose weights have 8 bits, by name; None where ONNX Runtime serves
    them.
    """
    from safetensors.torch import save

    tensors = dict(model.state_dict())
    for name, largest in ranges.items():
        weight = model.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        if fmt == "fp8":
            values, scale = fp8_matrix(weight.flatten(1))
        else:
            values, scale = int8_rows(
                weight.flatten(1), onnx.largest_weight() if largest is None else INT8_LARGEST
            )
        tensors |= {f"{name}.weight": values.view_as(weight), f"{name}.weight_scale": scale}
        if largest is not None:
            tensors[f"{name}.input_scale"] = torch.tensor(
                largest / (FP8.largest if fmt == "fp8" else INT8_LARGEST)
            )
    in_8_bits = fmt in QUANTISED and bool(ranges)
    about = {
        "format": "pt",  # transformers reads no other
        "number_format": fmt if in_8_bits else str(next(model.parameters()).dtype).removeprefix("torch."),
        "model_settings": json.dumps(config["model"]),
    }
    if in_8_bits:
        about["tensors"] = (
            f"LAYER.weight of {EIGHT_BITS[fmt]}: times LAYER.weight_scale it is the weight; "
            "LAYER.input_scale, where given, "
            "is that of its input; batch norms are part of the convolutions before them"
        )
    # none are tied
    whole = {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    return File(save(whole, about), beside={} if fmt in QUANTISED else _of_transformers(model))


def _of_transformers(model: nn.Module) -> dict[str, str]:
    """The file by which `from_pretrained` loads the folder, if the model is one of transformers."""
    config: Any = copy.deepcopy(getattr(model, "config", None))
    if not hasattr(config, "to_json_string"):
        return {}
    config.architectures, config.dtype = [type(model).__name__], next(model.parameters()).dtype
    return {"config.json": config.to_json_string()}


def write(folder: Path, name: str, files: Mapping[str, File]) -> dict[str, dict[str, Any]]:
    """Write the files to their own folder within the run's, in place of an earlier call's. Returns `exports`
    of deploy.json.
    """
    if not files:
        return {}
    try:
        with whole_folder(folder / EXPORTS / name) as made:
            for kind, file in files.items():
                write_whole(made / f"model.{kind}", file.content)
                for beside, text in file.beside.items():
                    write_whole(made / beside, text)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write {EXPORTS}/{name} there ({error.strerror}). Make room, or allow it."
        ) from error
    return {
        kind: {"file": f"{EXPORTS}/{name}/model.{kind}", "bytes": len(file.content)} | file.about
        for kind, file in files.items()
    }
