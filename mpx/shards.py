"""Tensors of which each process holds a part, as FSDP shards weights. Ordinary tensors pass through the same functions unchanged."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


def is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The module's class, without the one that FSDP derives from it for a block."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))


def local(tensor: Tensor) -> Tensor:
    """The part of `tensor` that this process holds, in the same memory; empty where there are fewer rows than processes."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def not_finite(model: nn.Module) -> str | None:
    """The name of the first trained weight that is infinite or NaN in the part that this process holds; None if there is none.

    A frozen one may be a mask of −∞.
    """
    return next((name for name, weight in model.named_parameters() if weight.requires_grad and not _is_finite(weight)), None)


def _is_finite(weight: Tensor) -> bool:
    """True also for a weight that has no answer: one without values, lazy, in 8 bits, or of a tensor class of another library."""
    try:
        return bool(torch.isfinite(local(weight)).all())
    except (RuntimeError, ValueError, TypeError):  # NotImplementedError is a RuntimeError
        return True


def whole(tensor: Tensor) -> Tensor:
    """All of `tensor`, the same on every process. All processes must call it."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """All of a sharded `tensor` on the host of process 0, for a checkpoint; without values (on `meta`) on the others. All must call it."""
    if not isinstance(tensor, DTensor):
        return tensor
    return whole(tensor).to("cpu" if dist.get_rank() == 0 else "meta")


def sharded_as(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor`, which every process has whole, on the device of `like` and sharded as it is. Talks to no other process."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    parts = distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    out = torch.empty_like(like, dtype=tensor.dtype, requires_grad=False)
    local(out).copy_(local(parts))  # a part of `tensor` itself would keep all of it in memory
    return out


def agree(flag: Tensor, on: Tensor) -> None:
    """Set `flag` to its largest value among the processes that share `on`; does nothing if `on` is not sharded."""
    if isinstance(on, DTensor):
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=on.device_mesh.get_group())
