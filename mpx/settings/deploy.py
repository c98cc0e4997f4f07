"""The keys of mpx.deploy, each with its rule."""

from collections.abc import Mapping
from typing import Any

from mpx.errors import UserError
from mpx.settings.rules import choice, many, one_or_more, text, whole
from mpx.settings.values import check_value

FORMATS = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")

DEPLOY = {
    "run": text(also=(None,), example="outputs/default/resnet20-digits-fp32-dense/seed0"),
    "format": one_or_more(choice(*FORMATS)),
    "weights": one_or_more(choice("auto", "dense", "2of4")),
    "backend": choice("auto", "eager", "compile", "graph", "onnx"),
    "batch": many(whole(1), least=1, example="[1,64,256]"),
    "accelerator": choice("auto", "cpu", "gpu"),
    "target": text(also=(None,), example="my_net.Net"),
}


def check_deploy(settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first setting that mpx.deploy does not have or that breaks its rule."""
    for key, value in settings.items():
        check_value(key, value, DEPLOY, "mpx.deploy")
    if settings["run"] is None:
        raise UserError(f"run is not set and has no default. Give the folder of a completed run, for example run={DEPLOY['run'].example}.")
