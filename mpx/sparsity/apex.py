"""sparsity.backend=apex: NVIDIA's apex chooses the masks of a run, and reorders the channels if asked to.

apex only chooses. Its ASP is initialised, computes the masks, restores the dense values and is reset; mpx then enforces the masks itself,
as in every run. apex's own enforcement replaces optimizer.step, ignores gradients that a closure computes, leaves the optimizer's state
of pruned weights unchanged, and puts its masks into the model's state_dict. This module also works around the following:

- ASP is one object per process and asserts at a second initialisation, so its class attributes are reset before and after each use.
- ASP calls .cuda() on the tensors it creates, so it only runs on the current CUDA device.
- ASP adds magnitudes with an FP32 matrix product, which TF32 would round to 10 bits. `exact` is a context that disables TF32.
- The permutation search reseeds every random generator and turns cuDNN's autotuner off. Both are restored.
- ASP prints even at verbosity 0.

Source: NVIDIA apex, apex/contrib/sparsity/asp.py.
"""

import io
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.errors import UserError, one_line
from mpx.private.apex import empty, sparse_parameters
from mpx.private.torch_modules import buffers
from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import Pattern, kept_magnitude, laid_out_as
from mpx.sparsity.tiles import Tiles

ATTENTION = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"]
ROWS, COLUMNS = 8, 16  # apex only prunes weights whose shape is a multiple of these
USE = "Use sparsity.backend=mpx"


class Apex(Pattern):
    """A pattern whose masks apex chooses, for the weights of one model.

    exact: returns a context in which products of FP32 operands are not rounded to TF32.
    """

    backend = "apex"

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

    def refuse(self, weights: list[Weight]) -> None:
        """Raise UserError for the first weight that the rules select but apex cannot prune."""
        for weight in weights:
            if weight.reason is None and weight.type in ("LSTM", "GRU"):
                raise UserError(
                    f"sparsity.backend=apex: apex's ASP cannot prune {weight.type} layers ({weight.name}). {USE}, or leave them dense: "
                    f'sparsity.skip=["{weight.layer}"].'
                )
            if weight.reason is None and not weight.parameter.requires_grad:
                raise UserError(f"sparsity.backend=apex: apex's ASP cannot prune frozen weights ({weight.name}). {USE}, or sparsity.skip=.")

    def rehearse(self, device: torch.device, *, permute: bool) -> None:
        """Raise UserError before training starts, instead of after the dense phase, if this version of apex fails on these settings."""
        with _undisturbed(), self.exact():
            trial = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).to(device)
            ask(trial, [trial[0].weight, trial[1].weight], self.calculator, permute=permute)

    def permute(self, weights: list[Weight], optimizers: Sequence[Optimizer]) -> dict[str, Any]:
        """Let apex reorder the model's channels. Returns the findings; `reason` says why the model is unchanged.

        apex does not reorder the optimizer's state with the channels, so a reordered model restarts with an empty state.
        """
        parameters, started = [weight.parameter for weight in weights if weight.reason is None], time.perf_counter()
        before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        kept_before, reason = self._kept(parameters), None
        try:
            with _undisturbed(), self.exact():
                ask(self.model, parameters, self.calculator, permute=True)
        except UserError as error:  # apex may have reordered some of the channels
            self.model.load_state_dict(before)
            reason = str(error)
        if all(torch.equal(tensor, before[name]) for name, tensor in self.model.state_dict().items()):
            reason = reason or "apex found nothing to reorder"
        else:
            for optimizer in optimizers:
                optimizer.state.clear()
        found = {"kept_before": kept_before, "kept_after": self._kept(parameters), "seconds": time.perf_counter() - started}
        return found | {"reason": reason, "layers": []}

    def _kept(self, parameters: list[Tensor]) -> float:
        """Share of Σ|w| over all parameters that the pattern keeps, 0 to 1."""
        sizes = [float(parameter.detach().abs().double().sum()) for parameter in parameters]
        shares = [kept_magnitude(parameter, mask) for parameter, mask in zip(parameters, self.pattern.masks(parameters), strict=True)]
        return sum(size * share for size, share in zip(sizes, shares, strict=True)) / (sum(sizes) or 1.0)


@torch.no_grad()
def ask(model: nn.Module, weights: Sequence[Tensor], calculator: str, *, permute: bool = False) -> list[Tensor]:
    """apex's masks for `weights`, parameters of `model`: bool, True stays. Afterwards the model is dense again.

    calculator: m4n2_1d, m4n2_2d_best or m4n2_2d_greedy. permute: first reorder the model's channels, in place.
    Raises UserError if apex fails; the model may then be partly pruned.
    """
    asp, owners = _load(), _owners(model, weights)
    kinds = {type(owner): ATTENTION if isinstance(owner, nn.MultiheadAttention) else ["weight"] for owner in owners.values()}
    arguments = {"whitelist": [], "allowed_layer_names": list(owners), "custom_layer_dict": kinds}
    with emptied(asp), redirect_stdout(io.StringIO()):
        try:
            asp.init_model_for_pruning(
                model, calculator, verbosity=0, allow_recompute_mask=True, allow_permutation=permute, **arguments
            )  # allow_recompute_mask makes apex keep the pruned values, so that it can restore them
            asp.compute_sparse_masks()
            chosen = {id(parameter): mask.bool().clone() for *_, parameter, mask, _ in sparse_parameters(asp)}
            asp.restore_pruned_weights()
        except Exception as error:
            what = f"{calculator} masks with allow_permutation={permute}"
            raise UserError(
                f"sparsity.backend=apex: this apex fails at {what} ({type(error).__name__}: {one_line(error)}). {USE}."
            ) from error
    return [laid_out_as(chosen[id(weight)], weight) for weight in weights]


def _owners(model: nn.Module, weights: Sequence[Tensor]) -> dict[str, nn.Module]:
    """The layers that own the weights, by name. A shared weight counts for its first layer."""
    wanted, found = {id(weight) for weight in weights}, {}
    for name, layer in model.named_modules():
        held = {id(parameter) for parameter in layer.parameters(recurse=False)} & wanted
        if held:
            found[name] = layer
            wanted -= held
    return found


def _load() -> Any:
    """apex's ASP. Silences what its import prints and warns; a failed import becomes a one-line UserError."""
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from apex.contrib.sparsity import ASP
    except Exception as error:
        raise UserError(
            f"sparsity.backend=apex: apex cannot be imported ({type(error).__name__}: {one_line(error)}). Repair its installation, or "
            f"{USE.lower()}."
        ) from error
    return ASP


@contextmanager
def emptied(asp: Any) -> Iterator[None]:
    """Reset ASP to its uninitialised state on entry and on exit, and remove its mask buffers from the model."""
    empty(asp)
    try:
        yield
    finally:
        for _, layer, name, *_ in sparse_parameters(asp):
            for kind in ("mask", "pruned_p"):
                buffers(layer).pop(f"__{name.rpartition('.')[2]}_mma_{kind}", None)
        empty(asp)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore the random generators and cuDNN's switches on exit."""
    cudnn, python, numpy = torch.backends.cudnn, random.getstate(), np.random.get_state()
    switches = cudnn.deterministic, cudnn.benchmark
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = switches
        random.setstate(python)
        np.random.set_state(numpy)
