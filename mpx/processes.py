"""The processes of a distributed training, as PyTorch's process group knows them."""

from typing import Any

import torch.distributed as dist


def rank_and_world() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) for a process that trains alone."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def from_all(mine: Any) -> list[Any]:
    """What each process gives for `mine`, by rank. All processes call this."""
    _, world = rank_and_world()
    parts = [mine] * world
    if world > 1:
        dist.all_gather_object(parts, mine)
    return parts
