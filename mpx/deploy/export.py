"""Export a served model to files that load without mpx: weights (safetensors), a program of torch.export
(pt2), an ONNX graph.

The files are made on the CPU, so that every machine can load them. Programs and graphs take batches of any
size.
"""

import copy
import io
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.deploy import onnx
from mpx.deploy.backends import reason_of, relative_error
from mpx.deploy.build import Samples, cast, in_format
from mpx.deploy.choose import Way
from mpx.deploy.prepare import Serving
from mpx.deploy.products import FP8, INT8_LARGEST, fp8_matrix, int8_rows
from mpx.deploy.record import EXPORTS
from mpx.errors import UserError
from mpx.settings.deploy import EXPORTS as KINDS
from mpx.settings.deploy import QUANTISED
from mpx.system.whole_file import whole_folder, write_whole

CPU = torch.device("cpu")
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


def exports(
    kinds: Collection[str], serving: Serving, way: Way, test: Samples, config: dict[str, Any]
) -> tuple[dict[str, File], dict[str, str]]:
    """The files of these kinds, and why others cannot be made. way: that serves the largest batch. config: of
    the run.
    """
    makers: dict[str, Callable[[], File]] = {
        "safetensors": lambda: _weights(serving, way, config),
        "pt2": lambda: _program(serving, test),
        "onnx": lambda: _graph(serving, test),
    }
    files: dict[str, File] = {}
    refused: dict[str, str] = {}
    for kind in kinds:
        if serving.fmt not in KINDS[kind]:
            refused[kind] = f"it can hold {', '.join(KINDS[kind])}, not {serving.fmt}"
            continue
        try:
            files[kind] = makers[kind]()
        except RuntimeError as error:
            refused[kind] = reason_of(error)
    return files, refused


def _program(serving: Serving, test: Samples) -> File:
    """A program of torch.export. Raises RuntimeError if the model cannot be exported."""
    size, file = min(serving.references), io.BytesIO()
    model = in_format(serving.trained, serving.mode, CPU)
    # a single sample would fix the batch size to 1
    x, two = (cast(test.batch(count).cpu(), serving.mode) for count in (size, 2))
    with onnx.as_runtime_errors(), onnx.quiet():
        shapes = ({0: torch.export.Dim("batch", min=1)},)
        torch.export.save(torch.export.export(model, (two,), dynamic_shapes=shapes), file)
        file.seek(0)
        error = relative_error(torch.export.load(file).module()(x), serving.references[size])
    return File(file.getvalue(), {"relative_error": error})


def _graph(serving: Serving, test: Samples) -> File:
    """The ONNX graph, with its metrics and error on the test set by ONNX Runtime."""
    model, size = serving.onnx_model(), min(serving.references)
    metrics = test.evaluate(lambda x: model(x.cpu()).to(x.device), max(serving.references))
    error = relative_error(model(test.batch(size).cpu()), serving.references[size])
    return File(model.content, {"metrics": metrics, "relative_error": error})


def _weights(serving: Serving, way: Way, config: dict[str, Any]) -> File:
    """The served weights if they have 8 bits; otherwise the trained ones in the format, by the names of the
    trained model.
    """
    if serving.fmt not in QUANTISED:
        return weights_file(in_format(serving.given, serving.mode, CPU), serving.fmt, {}, config)
    model = in_format(serving.trained, serving.mode, CPU)
    in_8_bits: dict[str, float | None] = {name: serving.ranges.get(name, 1.0) for name in way.quantised}
    if way.backend == "onnx":
        in_8_bits = {
            name: None for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
        }
    return weights_file(model, serving.fmt, in_8_bits, config)


def weights_file(
    model: nn.Module, fmt: str, ranges: Mapping[str, float | None], config: dict[str, Any]
) -> File:
    """A safetensors file. model: on the CPU, in the format of the weights that do not have 8 bits. config: of
    the run.

    ranges: of the inputs of the layers whose weights have 8 bits, by name; None where they are quantised as
    for ONNX Runtime.
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
    # safetensors refuses tensors that share memory
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
