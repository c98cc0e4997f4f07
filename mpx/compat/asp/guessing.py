"""An example input for a model whose author gave none: a batch that fits its first layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from mpx.evaluating import evaluating

IMAGES = (32, 224, 28, 64, 299)  # sides tried for a Conv2d, in pixels
LENGTHS = (16, 64, 128)  # tokens or samples tried


def guess(model: nn.Module) -> Tensor | None:
    """The first likely batch that the model takes in evaluation mode; None: none of them, or it begins with an unknown layer."""
    first = next(chain(model.parameters(), model.buffers()), None)
    if first is None:
        return None
    drawn = torch.random.fork_rng(devices=[first.device] if first.is_cuda else [])
    with torch.no_grad(), evaluating(model), drawn, _lookups_checked(model):
        return next((batch for batch in candidates(model, first) if _runs(model, batch)), None)


@contextmanager
def _lookups_checked(model: nn.Module) -> Iterator[None]:
    """An index beyond an embedding is an IndexError also on a GPU, where it would otherwise end every further use of the device."""
    hooks = [layer.register_forward_pre_hook(_check_lookup) for layer in model.modules() if isinstance(layer, nn.Embedding)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_lookup(layer: nn.Embedding, args: tuple) -> None:
    if args and isinstance(args[0], Tensor) and args[0].numel() and int(args[0].max()) >= layer.num_embeddings:
        raise IndexError(f"index {int(args[0].max())} of {layer.num_embeddings} embeddings")


def candidates(model: nn.Module, like: Tensor) -> Iterator[Tensor]:
    """Batches of two for the first layer of a known kind, on the device and in the format of `like`."""
    for layer in model.modules():
        if isinstance(layer, nn.Embedding):
            for length in LENGTHS:
                yield torch.arange(2 * length, device=like.device).view(2, length) % layer.num_embeddings
            return
        if shapes := _shapes(layer):
            generator = torch.Generator().manual_seed(0)
            for shape in shapes:
                yield torch.randn(shape, generator=generator).to(like)
            return


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    match layer:
        case nn.Conv2d():
            return [(2, layer.in_channels, side, side) for side in IMAGES]
        case nn.Conv1d():
            return [(2, layer.in_channels, length) for length in LENGTHS]
        case nn.Conv3d():
            return [(2, layer.in_channels, 16, side, side) for side in (32, 112)]
        case nn.Linear():
            return [(2, layer.in_features)] + [(2, length, layer.in_features) for length in LENGTHS]
        case nn.RNNBase():
            return [(2, length, layer.input_size) for length in LENGTHS]
        case nn.TransformerEncoderLayer():
            return [(2, length, layer.linear1.in_features) for length in LENGTHS]
    return []


def _runs(model: nn.Module, batch: Tensor) -> bool:
    try:
        model(batch)
    except Exception:  # whatever a model says to an input of the wrong shape
        return False
    return True
