"""Export a served model to files that load without mpx: weights (safetensors), a program of torch.export (pt2), an ONNX graph.

The files are made on the CPU, so that every machine can load them. Programs and graphs take batches of any size.
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
from mpx.deploy.backends import Callers, reason_of
from mpx.deploy.build import Trained, cast, in_format
from mpx.deploy.choose import Announce
from mpx.deploy.measure import Call, Samples, finite, relative_error
from mpx.deploy.onnx import OnnxModel
from mpx.deploy.products import FP8, INT8_LARGEST, fp8_matrix, int8_rows
from mpx.deploy.record import EXPORTS
from mpx.errors import UserError
from mpx.precision.modes import Mode
from mpx.whole_file import whole_folder, write_whole

TENSORS = {
    "int8": "LAYER.weight of int8: times LAYER.weight_scale, one for each output, it is the weight that is served",
    "fp8": "LAYER.weight of float8_e4m3fn: times LAYER.weight_scale it is the weight that is served",
}
SERVED = "; LAYER.input_scale, where given, is that of its input; "
FOLDED = "batch norms are part of the convolutions before them"


@dataclass(frozen=True)
class File:
    """content: of the file. found: the result of a check, for deploy.json. beside: other files that loading needs, by name."""

    content: bytes
    found: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)


def check_packages(wanted: Collection[str]) -> None:
    if "onnx" in wanted and (reason := onnx.missing()) is not None:
        raise UserError(f"export=onnx: {reason}. Install them, or leave it out.")


def programs(
    wanted: Collection[str], found: Trained, mode: Mode, callers: Callers, test: Samples, references: Mapping[int, Tensor],
    announce: Announce,
) -> dict[str, File]:  # fmt: skip
    """The wanted files that compute (pt2, onnx), checked. references: FP32 outputs of the first samples of `test`, by their number.

    Raises UserError if the model cannot be exported so.
    """
    files, sizes = {}, sorted(references)
    if "pt2" in wanted:
        announce("model.pt2")
        x = test.batch(sizes[0]).cpu()
        files["pt2"] = _program(in_format(found, mode, torch.device("cpu")), x, mode, references[sizes[0]])
    if "onnx" in wanted:
        announce("model.onnx on the test set")
        files["onnx"] = _graph(callers.onnx_model, found.model, test, sizes[-1])
    return files


def _program(model: nn.Module, x: Tensor, mode: Mode, reference: Tensor) -> File:
    """A program of torch.export. model: on the CPU, in `mode`. x: a batch in FP32; reference: its outputs in FP32."""
    file, x = io.BytesIO(), cast(x, mode)
    try:
        with onnx.as_runtime_errors(), onnx.quiet():
            two = x.repeat_interleave(2, dim=0)[:2]  # a single sample would fix the batch size to 1
            torch.export.save(torch.export.export(model, (two,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)), file)
            file.seek(0)
            error = relative_error(torch.export.load(file).module()(x), reference)
    except RuntimeError as refused:
        raise _impossible("pt2", refused) from refused
    return File(file.getvalue(), {"relative_error": error})


def _graph(call_by_onnx: Callable[[nn.Module], OnnxModel], model: nn.Module, test: Samples, size: int) -> File:
    """The ONNX graph of `model` (in FP32, on the CPU), compared with the model on the whole test set, in batches of `size`."""
    try:
        call = call_by_onnx(model)
        compared = Compared(call, model)
        metrics = test.evaluate(compared, size)
    except RuntimeError as refused:
        raise _impossible("onnx", refused) from refused
    return File(call.content, {"metrics": finite(metrics), **compared.found()})


class Compared:
    """Calls `call`, and compares its outputs with those of `reference`."""

    def __init__(self, call: Call, reference: Call):
        self.call, self.reference = call, reference
        self.differences = self.references = 0.0  # sums of squares
        self.largest = torch.zeros(())

    def __call__(self, x: Tensor) -> Tensor:
        found, expected = self.call(x.cpu()), self.reference(x.cpu())
        difference = found.double() - expected.double()
        self.differences += difference.square().sum()
        self.references += expected.double().square().sum()
        self.largest = torch.maximum(self.largest, difference.abs().max())  # NaN stays NaN
        return found.to(x.device)

    def found(self) -> dict[str, float | None]:
        values = {"relative_error": (self.differences / self.references).sqrt(), "largest_difference": self.largest}
        return {name: value.item() if value.isfinite() else None for name, value in values.items()}


def weights_file(model: nn.Module, fmt: str, quantised: Mapping[str, float | None], record: dict[str, Any]) -> File:
    """A safetensors file. model: on the CPU, in the format of its weights that do not have 8 bits. record: of the run.

    quantised: the names of the layers whose weights have 8 bits, with the range of their inputs; None if ONNX Runtime serves them. For int8
    and fp8 there is none if no layer is faster so.
    """
    from safetensors.torch import save

    tensors = dict(model.state_dict())
    for name, range_ in quantised.items():
        weight = model.get_submodule(name).weight
        largest = onnx.largest_weight() if range_ is None else INT8_LARGEST
        values, scale = fp8_matrix(weight.flatten(1)) if fmt == "fp8" else int8_rows(weight.flatten(1), largest)
        sources = (f"{name}.weight_", f"{name}.parametrizations.weight.")  # from which weight_norm and the like compute the weight
        tensors = {key: value for key, value in tensors.items() if not key.startswith(sources)}
        tensors |= {f"{name}.weight": values.view_as(weight), f"{name}.weight_scale": scale}
        if range_ is not None:
            tensors[f"{name}.input_scale"] = torch.tensor(range_ / (FP8.largest if fmt == "fp8" else INT8_LARGEST))
    setting = record.get("setting", {})
    served_in = {torch.float32: "fp32", torch.bfloat16: "bf16"}[next(model.parameters()).dtype] if fmt in TENSORS and not quantised else fmt
    metadata = {key: str(setting[key]) for key in ("model", "data", "sparsity") if key in setting} | {"number_format": served_in}
    metadata |= {"format": "pt", "model_settings": json.dumps(record["config"]["model"])}  # transformers reads files of this "format" only
    if fmt in TENSORS:
        metadata["tensors"] = (TENSORS[fmt] + SERVED if quantised else "") + FOLDED
    apart = {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}  # tied weights are refused
    return File(save(apart, metadata), beside={} if fmt in TENSORS else _of_transformers(model))


def _of_transformers(model: nn.Module) -> dict[str, str]:
    """The file by which `from_pretrained` loads the folder, if the model is one of transformers."""
    config = copy.deepcopy(getattr(model, "config", None))
    if not hasattr(config, "to_json_string"):
        return {}
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    return {"config.json": config.to_json_string()}


def write(folder: Path, name: str, files: Mapping[str, File]) -> dict[str, dict[str, Any]]:
    """Write the files to their own folder within the run's, in place of an earlier call's. Returns `exports` of deploy.json."""
    if not files:
        return {}
    try:
        with whole_folder(folder / EXPORTS / name) as made:
            for kind, file in files.items():
                write_whole(made / f"model.{kind}", file.content)
                for beside, text in file.beside.items():
                    write_whole(made / beside, text)
    except OSError as error:
        raise UserError(f"{folder}: cannot write {EXPORTS}/{name} there ({error.strerror}). Make room there, or allow it.") from error
    return {
        kind: {"file": f"{EXPORTS}/{name}/model.{kind}", "bytes": len(file.content)} | file.found for kind, file in files.items()
    }  # fmt: skip


def _impossible(kind: str, error: RuntimeError) -> UserError:
    return UserError(f"export={kind} is not possible for this model: {reason_of(error)}. Leave it out.")
