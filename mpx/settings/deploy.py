"""The keys of mpx.deploy, each with its rule."""

from collections.abc import Mapping
from typing import Any

from mpx.errors import UserError
from mpx.settings.rules import choice, either, many, text, whole
from mpx.settings.values import check_value

EXPORTS = {  # by the kind of file: the formats that it can have
    "safetensors": ("fp32", "tf32", "fp16", "bf16", "int8", "fp8"),
    "pt2": ("fp32", "tf32", "fp16", "bf16"),
    "onnx": ("fp32", "tf32", "int8"),
}
DEPLOY = {
    "run": text(also=(None,), example="outputs/default/resnet20-digits-fp32-dense/seed0"),
    "format": choice("fp32", "tf32", "fp16", "bf16", "int8", "fp8"),
    "weights": choice("auto", "dense", "2of4"),
    "backend": choice("auto", "eager", "compile", "graph", "onnx"),
    "batch": many(whole(1), least=1, example="[1,64,256]"),
    "export": either(choice(*EXPORTS), many(choice(*EXPORTS), example="[safetensors,onnx]")),
    "accelerator": choice("auto", "cpu", "gpu"),
    "target": text(also=(None,), example="my_net.Net"),
}


def check_deploy(settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first setting that mpx.deploy does not have or that breaks its rule."""
    for key, value in settings.items():
        check_value(key, value, DEPLOY, "mpx.deploy")
    if settings["run"] is None:
        raise UserError(f"run is not set and has no default. Give the folder of a completed run, for example run={DEPLOY['run'].example}.")
    _check_export(settings["export"], settings["format"])


def _check_export(export: str | list[str], fmt: str) -> None:
    for kind in [export] if isinstance(export, str) else export:
        if fmt not in EXPORTS[kind]:
            kinds = [name for name, formats in EXPORTS.items() if fmt in formats]
            raise UserError(
                f"export={kind} is not possible with format={fmt}, but {' and '.join(f'export={name}' for name in kinds)}; "
                f"export={kind} with format={', '.join(EXPORTS[kind])}."
            )
