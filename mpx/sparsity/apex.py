"""sparsity.backend=apex: NVIDIA's apex chooses the masks of a run.

apex only chooses. Its ASP is initialised, computes the masks, restores the dense values and is reset; mpx
then enforces the masks itself, as in every run, and permutes the channels if asked to. apex's own enforcement
replaces optimizer.step, ignores gradients that a closure computes, leaves the optimizer's state of pruned
weights unchanged, and puts its masks into the model's state_dict. ASP is one object per process and asserts
at a second initialisation, so its class attributes are reset before and after each use. It calls .cuda() on
the tensors it creates, so it only runs on the current CUDA device.

Source: NVIDIA apex, apex/contrib/sparsity/asp.py.
"""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from mpx.errors import UserError, one_line
from mpx.private.apex import empty, sparse_parameters
from mpx.private.torch_modules import buffers
from mpx.sparsity.patterns import Pattern, laid_out_as
from mpx.sparsity.tiles import Tiles

ATTENTION = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"]
ROWS, COLUMNS = 8, 16  # apex only prunes weights whose shape is a multiple of these
USE = "Use sparsity.backend=mpx"


class Apex(Pattern):
    """A pattern whose masks apex chooses, for the weights of one model.

    exact: returns a context in which products of FP32 operands are not rounded to TF32, by which apex adds
    magnitudes.
    """

    backend = "apex"
    name = ""

    def __init__(self, pattern: Pattern, model: nn.Module, exact: Callable[[], AbstractContextManager]):
        self.pattern, self.model, self.exact = pattern, model, exact
        self.name, self.rows, self.columns = pattern.name, pattern.rows, pattern.columns
        self.calculator = f"m4n2_2d_{pattern.search}" if isinstance(pattern, Tiles) else "m4n2_1d"

    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        with self.exact():
            return ask(self.model, weights, self.calculator)

    def holds(self, weight: Tensor) -> Tensor:
        return self.pattern.holds(weight)

    def misfit(self, shape: Sequence[int]) -> str | None:
        if shape[0] % ROWS or shape[1] % COLUMNS:
            return f"{shape[0]}×{shape[1]}: apex only prunes multiples of {ROWS}×{COLUMNS}"
        return self.pattern.misfit(shape)


@torch.no_grad()
def ask(model: nn.Module, weights: Sequence[Tensor], calculator: str) -> list[Tensor]:
    """apex's masks for `weights`, parameters of `model`: bool, True stays. Afterwards the model is dense
    again.

    calculator: m4n2_1d, m4n2_2d_best or m4n2_2d_greedy. Raises UserError if apex fails; the model may then be
    partly pruned.
    """
    owners = _owners(model, weights)
    kinds = {
        type(owner): ATTENTION if isinstance(owner, nn.MultiheadAttention) else ["weight"]
        for owner in owners.values()
    }
    arguments = {
        "whitelist": [],
        "allowed_layer_names": list(owners),
        "custom_layer_dict": kinds,
        "allow_permutation": False,
    }
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():  # ASP prints even at verbosity 0
            warnings.simplefilter("ignore")
            from apex.contrib.sparsity import ASP

            # allow_recompute_mask makes apex keep the pruned values, so that it can restore them
            with emptied(ASP):
                ASP.init_model_for_pruning(
                    model, calculator, verbosity=0, allow_recompute_mask=True, **arguments
                )
                ASP.compute_sparse_masks()
                chosen = {
                    id(parameter): mask.bool().clone() for *_, parameter, mask, _ in sparse_parameters(ASP)
                }
                ASP.restore_pruned_weights()
    except Exception as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(
            f"sparsity.backend=apex: this apex fails at {calculator} masks ({what}). {USE}."
        ) from error
    for name, layer in owners.items():
        if not any(id(weight) in chosen for weight in layer.parameters(recurse=False)):
            raise UserError(
                f"sparsity.backend=apex: apex's ASP cannot prune {type(layer).__name__} "
                f"({name}). {USE}, or sparsity.skip."
            )
    return [laid_out_as(chosen[id(weight)], weight) for weight in weights]


def _owners(model: nn.Module, weights: Sequence[Tensor]) -> dict[str, nn.Module]:
    """The layers that own the weights, by name. A shared weight counts for its first layer."""
    wanted, owners = {id(weight) for weight in weights}, {}
    for name, layer in model.named_modules():
        held = {id(parameter) for parameter in layer.parameters(recurse=False)} & wanted
        if held:
            owners[name] = layer
            wanted -= held
    return owners


@contextmanager
def emptied(asp: Any) -> Iterator[None]:
    """Reset ASP to its uninitialised state on entry and on exit, and remove its mask buffers from the
    model.
    """
    empty(asp)
    try:
        yield
    finally:
        for _, layer, name, *_ in sparse_parameters(asp):
            for kind in ("mask", "pruned_p"):
                buffers(layer).pop(f"__{name.rpartition('.')[2]}_mma_{kind}", None)
        empty(asp)
