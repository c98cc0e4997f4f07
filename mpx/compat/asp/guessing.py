"""Guess an example input: a batch of two that one of the model's first layers and the whole model accept."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice

import torch
from torch import Tensor, nn

from mpx.models.evaluating import evaluating

TABLES = nn.Embedding | nn.EmbeddingBag
SEQUENCES = nn.MultiheadAttention | nn.Transformer | nn.TransformerEncoderLayer | nn.TransformerDecoderLayer | nn.RNNBase
FIRST = 4  # layers to try, since the first layer defined need not be the first called
SIDES = (32, 224, 28, 64, 299)  # of an image, in pixels
OTHER_SIDES = (*range(27, 1, -1), 48, 56, 84, 96, 112, 128, 160, 192, 227, 240, 256, 384, 512, 1)  # for a model with a fixed size
LENGTHS = (16, 64, 128)  # of a sequence
OTHER_LENGTHS = (8, 32, 49, 50, 100, 196, 256, 512)
OTHER_SAMPLES = (*range(32, 1, -1), 50, 100, 256, 512, 1000, 1024, 4096, 16000, 1)  # 1 comes last because it broadcasts

Shape = tuple[int, ...]


def guess(model: nn.Module) -> Tensor | tuple[Tensor, ...] | None:
    """The first candidate batch that the model accepts in evaluation mode, repeated for each argument if it needs several sequences.

    None if it accepts none, or if it has no layer of a known kind.
    """
    like = next(chain(model.parameters(), model.buffers()), None)
    if like is None:
        return None
    drawn = torch.random.fork_rng(devices=[like.device] if like.is_cuda else [])
    with torch.no_grad(), evaluating(model), drawn, _lookups_checked(model):
        return next((batch for batch in candidates(model, like) if _runs(model, batch)), None)


def candidates(model: nn.Module, like: Tensor) -> Iterator[Tensor | tuple[Tensor, ...]]:
    """Batches for the model's first layers of known kinds, likely sizes first, on the device and in the format of `like`."""
    sequential = any(isinstance(layer, SEQUENCES) for layer in model.modules())
    known = ((layer, shapes) for layer in model.modules() if (shapes := _shapes(layer, model, sequential)) is not None)
    layers, generator = list(islice(known, FIRST)), torch.Generator().manual_seed(0)
    for likely in (0, 1):
        for layer, shapes in layers:
            several = _required(model) if isinstance(layer, TABLES | SEQUENCES) else 1
            for shape in shapes[likely]:
                batch = _indices(layer, shape, like) if isinstance(layer, TABLES) else torch.randn(shape, generator=generator).to(like)
                yield (batch,) * several if several > 1 else batch


def _shapes(layer: nn.Module, model: nn.Module, sequential: bool) -> tuple[list[Shape], list[Shape]] | None:
    """(likely shapes, others) of the layer's input; None for other kinds of layers. sequential: the model has layers for sequences."""
    match layer:
        case nn.Embedding() | nn.EmbeddingBag():
            return [(2, length) for length in LENGTHS], [(2, length) for length in OTHER_LENGTHS] + [(2,)]
        case nn.Conv2d():
            sides = [*_image_sizes(model), *((side, side) for side in SIDES)]
            return [(2, layer.in_channels, *size) for size in sides], [(2, layer.in_channels, side, side) for side in OTHER_SIDES]
        case nn.Conv1d():
            return [(2, layer.in_channels, length) for length in LENGTHS], [(2, layer.in_channels, length) for length in OTHER_SAMPLES]
        case nn.Conv3d():
            likely, others = [(16, 32, 32), (16, 112, 112)], [(2**i, 2**j, 2**j) for i in range(5, -1, -1) for j in range(6, -1, -1)]
            return [(2, layer.in_channels, *size) for size in likely], [(2, layer.in_channels, *size) for size in others]
        case nn.Linear():
            one, many = _sequences(layer.in_features)
            flat = [(2, layer.in_features)]
            return (one + flat if sequential else flat + one), many  # attention reads two dimensions as one sequence without a batch
        case nn.RNNBase():
            return _sequences(layer.input_size)
        case nn.MultiheadAttention():
            return _sequences(layer.embed_dim)
        case nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
            return _sequences(layer.linear1.in_features)
    return None


def _sequences(features: int) -> tuple[list[Shape], list[Shape]]:
    return [(2, length, features) for length in LENGTHS], [(2, length, features) for length in OTHER_LENGTHS]


def _image_sizes(model: nn.Module) -> Iterator[Shape]:
    """The image sizes that models of timm, torchvision and transformers declare."""
    for layer in model.modules():
        for owner in (layer, getattr(layer, "config", None)):
            for name in ("image_size", "img_size"):
                size = getattr(owner, name, None)
                if isinstance(size, int) and size > 0:
                    yield size, size
                elif isinstance(size, tuple | list) and len(size) == 2:
                    yield tuple(size)


def _required(model: nn.Module) -> int:
    """The number of required positional arguments of the model."""
    parameters = inspect.signature(model.forward).parameters.values()
    return sum(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)


def _indices(table: nn.Embedding | nn.EmbeddingBag, shape: Shape, like: Tensor) -> Tensor:
    return (torch.arange(torch.Size(shape).numel(), device=like.device) % table.num_embeddings).view(shape)


@contextmanager
def _lookups_checked(model: nn.Module) -> Iterator[None]:
    """Raise IndexError for an index beyond an embedding. On a GPU the lookup would otherwise make the device unusable."""
    with ExitStack() as hooks:
        for layer in (layer for layer in model.modules() if isinstance(layer, TABLES)):
            hooks.enter_context(layer.register_forward_pre_hook(_check_lookup))
        yield


def _check_lookup(layer: nn.Embedding | nn.EmbeddingBag, args: tuple) -> None:
    if args and isinstance(args[0], Tensor) and args[0].numel() and int(args[0].max()) >= layer.num_embeddings:
        raise IndexError(f"index {int(args[0].max())} of {layer.num_embeddings} embeddings")


def _runs(model: nn.Module, batch: Tensor | tuple[Tensor, ...]) -> bool:
    try:
        model(*batch) if isinstance(batch, tuple) else model(batch)
    except Exception:  # a model may raise anything for an input of the wrong shape
        return False
    return True
