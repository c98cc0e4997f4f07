"""The keys of mpx.deploy, each with its rule."""

from collections.abc import Mapping
from typing import Any

from mpx.errors import UserError
from mpx.settings.rules import choice, many, number, text, whole
from mpx.settings.values import check_value, leaves

DEPLOY = {
    "run": text(also=(None,), example="outputs/default/resnet20-digits-fp32-dense/seed0"),
    "format": choice("fp32", "tf32", "fp16", "bf16", "int8", "fp8"),
    "weights": choice("auto", "dense", "2of4"),
    "backend": choice("auto", "eager", "compile", "graph", "onnx"),
    "batch": many(whole(1), least=1, example="[1,64,256]"),
    "accelerator": choice("auto", "cpu", "gpu"),
    "finetune.epochs": number(0, example=1),
    "finetune.lr_share": number(0, open_low=True, example=0.01),
    "target": text(also=(None,), example="my_net.Net"),
}


def check_deploy(settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first setting that mpx.deploy does not have or that breaks its rule."""
    for key, value in leaves(settings):
        check_value(key, value, DEPLOY, "mpx.deploy")
    if settings["run"] is None:
        raise UserError(f"run is not set and has no default. Give the folder of a completed run, for example run={DEPLOY['run'].example}.")
    if settings["finetune"]["epochs"] and settings["format"] not in ("int8", "fp8"):
        raise UserError(
            f"finetune.epochs={settings['finetune']['epochs']:g} is for formats of 8 bits, and format={settings['format']} is none. "
            "Use format=int8 or fp8, or finetune.epochs=0."
        )
