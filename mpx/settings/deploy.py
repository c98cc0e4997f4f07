"""The keys of mpx.deploy, each with its rule. The groups `model` and `data` keep their rules of mpx.train."""

import os
from collections.abc import Mapping
from typing import Any

from mpx.errors import UserError
from mpx.settings.data import check_data, family
from mpx.settings.fields import DATA, MODEL
from mpx.settings.model import check_model
from mpx.settings.reachable import check_files, check_target
from mpx.settings.rules import choice, either, many, one_or_more, text, whole
from mpx.settings.values import check_value, leaves

FORMATS = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
QUANTISED = ("int8", "fp8")  # formats of operands alone: on a GPU the rest of the model is BF16
EXPORTS = {  # kind of file -> the formats that it supports
    "safetensors": FORMATS,
    "pt2": ("fp32", "tf32", "fp16", "bf16"),
    "onnx": ("fp32", "tf32", "int8"),
}
MAX_BATCH = 65536
DEPLOY = {
    "run": text(also=(None,), example="outputs/default/resnet20-digits-fp32-dense/seed0"),
    "ckpt": text(also=(None,), example="weights.pt"),
    "out": text(also=(None,), example="served"),
    "format": one_or_more(choice(*FORMATS)),
    "weights": one_or_more(choice("auto", "dense", "2of4")),
    "backend": choice("auto", "eager", "compile", "graph", "onnx"),
    "batch": one_or_more(whole(1, MAX_BATCH, example="[1,64,256]")),
    "export": either(choice(*EXPORTS), many(choice(*EXPORTS), example="[safetensors,onnx]")),
    "predict": text(also=(None,), example="new.csv"),
    "accelerator": choice("auto", "cpu", "gpu"),
    "target": either(
        text(also=(None,), example="my_net.Net"),
        many(text(example="my_net.Net"), least=1, example="[my_net.Net]"),
    ),
}
NEEDED_WITH_CKPT = ("model", "data", "ckpt")  # keys of weights without a run
WORDS = (*DEPLOY, "model", "data", *MODEL, *DATA)  # the keys of mpx.deploy's words


def check_deploy(settings: Mapping[str, Any]) -> None:
    """Raise UserError for the first setting that mpx.deploy does not have or that breaks its rule."""
    for key, value in leaves(settings):
        check_value(key, value, DEPLOY | MODEL | DATA, "mpx.deploy")
    given = [key for key in (*NEEDED_WITH_CKPT, "out") if settings.get(key) is not None]
    if settings["run"] is None:
        _check_own(settings, given)
    elif given:
        raise UserError(
            f"{given[0]}= is for weights without a run, and run= is given. Use run=FOLDER alone, or "
            "model=, data= and ckpt=."
        )
    for kind in listed(settings["export"]):
        if not set(listed(settings["format"])) & set(EXPORTS[kind]):
            raise UserError(
                f"export={kind} is not possible with format={settings['format']}. Use "
                f"format={' or '.join(EXPORTS[kind])}."
            )


def _check_own(settings: Mapping[str, Any], given: list[str]) -> None:
    if not given:
        raise UserError(
            "run is not set and has no default. Give the folder of a completed run, for example "
            f"run={DEPLOY['run'].example}; or model=, data= and ckpt= of your own."
        )
    if absent := [key for key in NEEDED_WITH_CKPT if key not in given]:
        raise UserError(
            f"{absent[0]} is not set. Weights of your own need model=, data= and ckpt=FILE; a "
            "run needs run=FOLDER alone."
        )
    if settings["target"] is not None:
        raise UserError("target= is for runs. Leave it out: model._target_ names the class here.")
    model, data = settings["model"], settings["data"]
    check_model(model, data["kind"], data.get("task", "classification"), family(data))
    check_data(data)
    check_files(data)
    check_target("model", model)
    check_target("data", data)
    # Path.is_file raises where a name is too long or a folder may not be read
    if not os.path.isfile(settings["ckpt"]):
        raise UserError(
            f"ckpt={settings['ckpt']} is not a file. Give the path of a saved state_dict, a checkpoint or "
            "a .safetensors file."
        )


def listed(value: Any) -> list[Any]:
    """The values of a setting that takes one or a list, each once."""
    return list(dict.fromkeys([value] if isinstance(value, str | int) else value))
