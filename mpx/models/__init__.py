"""All networks that `model=` can name, built to fit the data set.

    build(cfg.model, spec) -> torch.nn.Module

`forward(x)` takes x as `mpx.data.spec.Spec` describes it and returns float logits: [B, classes], for lm [B,
T, vocab_size]. Input shape and number of classes come from the data set. Parameters keep the names of the
network's library (torchvision, transformers, timm), so that a checkpoint loads into that library's own class.

    resnet.py, bert.py, lstm.py, mlp.py   mpx's own
    lookup.py       any network of torchvision or timm, and the user's own; hf.py: of transformers, loaded by
                    pretrained.py
    probe.py        tries a network on one sample before training
"""

from collections.abc import Mapping
from importlib import import_module

from mpx.data.spec import Spec
from mpx.settings.model import check_model
from mpx.settings.values import as_dict

# model.family -> (module, function). A module is imported when it is needed: a ResNet does not wait for
# transformers.
FAMILIES = {
    "resnet": ("mpx.models.resnet", "build"),
    "bert": ("mpx.models.bert", "build"),
    "lstm": ("mpx.models.lstm", "build"),
    "mlp": ("mpx.models.mlp", "build"),
    "torchvision": ("mpx.models.lookup", "build_torchvision"),
    "timm": ("mpx.models.lookup", "build_timm"),
    "hf": ("mpx.models.hf", "build"),
    "custom": ("mpx.models.lookup", "build_custom"),
}


def build(model_cfg: Mapping, spec: Spec):
    """Build the network that `model_cfg` names for data that looks like `spec`.

    model_cfg: the settings of conf/model/<name>.yaml, each of which keeps its rule. Raises UserError
    for a network that cannot take such data.
    """
    settings = as_dict(model_cfg)
    check_model(settings, spec.kind, spec.task)
    module, function = FAMILIES[settings["family"]]
    return getattr(import_module(module), function)(settings, spec)
