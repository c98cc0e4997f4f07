"""Every network that `model=` can name, built for one data set.

    build(cfg.model, spec) -> torch.nn.Module

`forward(x)` takes x as `mpx.spec.Spec` describes it and returns float logits: [B, classes], for lm [B, T, vocab_size]. Input shape and
class count come from the data set. Parameters keep the names of the library that the network comes from (torchvision, transformers,
timm), so a checkpoint loads into that library's own class.

FAMILIES names each network's file; lookup.py finds those of torchvision and timm. probe.py tries a network on one sample before training.
"""

from collections.abc import Mapping
from importlib import import_module

from mpx.errors import UserError, nearest
from mpx.spec import Spec

# model.family -> (module, function). Imported when asked for: a ResNet must not wait for transformers.
FAMILIES = {
    "resnet": ("mpx.models.resnet", "build"),
    "bert": ("mpx.models.bert", "build"),
    "lstm": ("mpx.models.lstm", "build"),
    "mlp": ("mpx.models.mlp", "build"),
    "torchvision": ("mpx.models.lookup", "build_torchvision"),
    "timm": ("mpx.models.lookup", "build_timm"),
    "hf": ("mpx.models.hf", "build"),
    "custom": ("mpx.models.custom", "build"),
}


def build(model_cfg: Mapping, spec: Spec):
    """The network that `model_cfg` (the `model` group of the configuration) names, for data that looks like `spec`.

    Raises UserError when the network cannot take such data or one of its settings is wrong.
    """
    family = model_cfg.get("family")
    if family not in FAMILIES:
        raise UserError(f"model.family={family} is unknown; allowed: {', '.join(FAMILIES)}.{nearest(str(family), FAMILIES)}")
    allowed = list(model_cfg.get("inputs") or [])
    if spec.kind not in allowed:
        raise UserError(
            f"model={model_cfg.get('name') or family} takes {' or '.join(allowed)} data, and this data set is of kind {spec.kind}; "
            f"choose another model, or a data set of kind {' or '.join(allowed)}."
        )
    module, function = FAMILIES[family]
    return getattr(import_module(module), function)(model_cfg, spec)
