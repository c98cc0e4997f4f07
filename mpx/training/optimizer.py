"""The optimizers, by their names in conf/optimizer."""

from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.torch_version import TorchVersion

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def build_optimizer(model: nn.Module, cfg: DictConfig) -> torch.optim.Optimizer:
    """The optimizer of `cfg`. Only matrices and filters have weight decay; biases and norms, with one dimension, have none.

    It is fused: one kernel updates all weights, computes in FP32 whatever their format, and skips an overflowed step on the device. The
    kernel reads weights and state in the order of their memory, so loaded state gets the layout of its weights.
    """
    settings = {str(key): value for key, value in cfg.items() if key not in ("name", "lr", "weight_decay")}
    settings["lr"] = float(cfg.lr)  # PyTorch refuses huge integers, and 0 among the betas
    if "betas" in settings:
        settings["betas"] = tuple(map(float, settings["betas"]))
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": float(cfg.weight_decay)},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = OPTIMIZERS[cfg.name](
        [group for group in groups if group["params"]], fused=_fused_is_sound(cfg.name, parameters), **settings
    )
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.register_load_state_dict_post_hook(_lay_out_state)
    optimizer.register_load_state_dict_post_hook(lambda loaded: _keep_settings(loaded, groups))
    return optimizer


def _fused_is_sound(name: str, parameters: list[nn.Parameter]) -> bool:
    """Whether fused steps update all weights. Before 2.15, PyTorch's fused SGD silently skips most 16-bit weights on a CPU
    (pytorch#191763). Every fused step refuses complex ones."""
    if any(p.is_complex() for p in parameters):
        return False
    on_cpu_in_16_bits = any(p.device.type == "cpu" and p.dtype in (torch.float16, torch.bfloat16) for p in parameters)
    return name != "sgd" or not on_cpu_in_16_bits or TorchVersion(torch.__version__) >= "2.15"


def _keep_settings(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Put this run's settings back, after a checkpoint has brought its own."""
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group.update(settings)


def _lay_out_state(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the layout of its weights: the checkpoint's run may have used another one (channels_last or not).

    With the wrong layout a CPU would read the numbers in the wrong order, and a GPU would raise.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


def say_whether_recorded(optimizer: torch.optim.Optimizer) -> None:
    """Tell Adam whether a CUDA graph records the next step. Told wrongly, it refuses the recording or warns in an ordinary step.

    Called before every step, because a checkpoint brings the value of its own run. A fused Adam ignores it.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = group["params"][0].is_cuda and torch.cuda.is_current_stream_capturing()
