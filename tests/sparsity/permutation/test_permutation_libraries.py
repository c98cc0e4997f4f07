"""Models of torchvision, timm and transformers compute what they computed, in both modes, to the rounding of float64."""

import copy

import pytest
import timm
import torch
import torchvision
import transformers
from helpers_for_permutation import permuted, shaken
from torch import nn
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.slow

MODELS = [
    "torchvision efficientnet_b0", "torchvision regnet_y_400mf", "timm ghostnet_050", "timm mixer_s32_224", "transformers Bert",
    "transformers Llama", "transformers ViT",
]  # fmt: skip
SIZES = {
    "d_model": 64, "dim": 64, "hidden_size": 64, "n_embd": 64, "word_embed_proj_dim": 64, "d_ff": 128, "ffn_dim": 128, "hidden_dim": 128,
    "intermediate_size": 128, "d_kv": 16, "n_heads": 4, "n_head": 4, "num_heads": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "n_layer": 2, "n_layers": 2, "num_layers": 2, "num_hidden_layers": 2, "vocab_size": 96, "image_size": 32, "patch_size": 8,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HEADS = {"ViT": "ForImageClassification", "Bert": "ForSequenceClassification"}
NORMS_IN_FP32 = ("Llama",)  # whatever the type of the model



def made(choice: str) -> tuple[nn.Module, torch.Tensor]:
    """A model without anything random in training mode, and a batch."""
    library, name = choice.split()
    if library == "transformers":
        config = getattr(transformers, f"{name}Config")()
        known = config.to_dict()
        for key, value in (SIZES | {key: 0.0 for key in known if "drop" in key and isinstance(known[key], float)}).items():
            if key in known:
                setattr(config, key, value)
        model = getattr(transformers, name + HEADS.get(name, "ForCausalLM"))(config)
        batch = torch.randn(2, 3, 32, 32) if name == "ViT" else torch.randint(3, 90, (2, 12))
    else:
        model = (timm.create_model if library == "timm" else torchvision.models.get_model)(name, num_classes=16)
        batch = torch.randn(4, 3, *[224 if name == "mixer_s32_224" else 64] * 2)
    for parameter in model.parameters():
        if parameter.abs().max() < 1e-3:  # as some heads begin: the outputs would show nothing
            nn.init.normal_(parameter, 0, 0.1)
    for layer in model.modules():
        for rate in {"p", "drop_prob", "drop_rate"} & vars(layer).keys():
            setattr(layer, rate, 0.0)
        if hasattr(layer, "running_mean"):
            layer.momentum = 1.0  # the pass below leaves the batch's statistics, so that in evaluation too outputs depend on the batch
    model, batch = shaken(model).double(), batch.double() if batch.is_floating_point() else batch
    with torch.no_grad():
        model.train()(batch)
    return model.eval(), batch


def results(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """The outputs in evaluation and in training mode, from the statistics that it has now."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        return [one for mode in (False, True) for one in tree_leaves(model.train(mode)(batch)) if isinstance(one, torch.Tensor)]


@pytest.mark.parametrize("choice", MODELS)
def test_function_is_kept(choice):
    torch.manual_seed(0)
    model, batch = made(choice)
    expected = results(model, batch)
    assert all(it.std(0).max() > 1e-6 * it.abs().max() for it in expected)  # they depend on the batch
    report = permuted(model, batch)
    assert report.reason is None
    worst = max(float((one - it).abs().max() / it.abs().max()) for one, it in zip(results(model, batch), expected, strict=True))
    print(f"{sum(layer.permuted for layer in report.layers)} of {len(report.layers)} permuted, change {worst:.0e}")
    assert worst <= (1e-6 if choice.endswith(NORMS_IN_FP32) else 1e-13)
