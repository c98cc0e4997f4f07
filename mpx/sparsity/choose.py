"""Build the pattern, the rules, the plan and the recipe that a run's sparsity settings name.

With sparsity.backend=apex, NVIDIA's apex chooses the masks; mpx enforces them itself, as in every run. ASP is
one object per process and refuses a second initialisation, so its class attributes are reset before and after
each use. It needs a CUDA device. Source: NVIDIA apex, apex/contrib/sparsity/asp.py.
"""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from mpx.errors import UserError, one_line
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls
from mpx.private.apex import empty, sparse_parameters
from mpx.private.torch_modules import buffers
from mpx.sparsity.layers import Rules
from mpx.sparsity.patterns import NofM, Pattern, Unstructured, laid_out_as
from mpx.sparsity.recipes import Gradual, OneShot, Plan, Recipe, SrSte
from mpx.sparsity.tiles import Tiles
from mpx.system.printing import how_many

ATTENTION = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_weight"]
USE = "Use sparsity.backend=mpx"


def choose_pattern(sparsity: DictConfig) -> Pattern:
    if sparsity.pattern == "2of4_2d":
        return Tiles(sparsity.search)
    if sparsity.pattern == "unstructured":
        return Unstructured(sparsity.density)
    return NofM(sparsity.n, sparsity.m) if sparsity.pattern == "nofm" else NofM(2, 4)


def choose_rules(sparsity: DictConfig) -> Rules:
    types, skip, only = (tuple(sparsity[key]) for key in ("types", "skip", "only"))
    return Rules(sparsity.shape_rule, types, skip, only)


def choose_recipe(sparsity: DictConfig, plan: Plan) -> Recipe:
    if sparsity.recipe == "sr_ste":
        return SrSte(plan, decay=sparsity.decay)
    kind = {"one_shot": OneShot, "gradual": Gradual}.get(sparsity.recipe, Recipe)
    return kind(sparsity.recipe, plan)


def plan(sparsity: DictConfig, total: float) -> Plan:
    """The plan of a run of `total` optimizer steps; infinite where their number is unknown.

    At least one step follows the pruning. Raises UserError for a start or end beyond the run, and for a share
    of a run of unknown length.
    """
    start = _start(sparsity, total)
    if sparsity.recipe != "gradual":
        return Plan(start, start)
    end = _share(sparsity, "end", total)
    if end < start:
        raise UserError(
            f"sparsity.end={sparsity.end:g} is step {end}, before the pruning starts at step "
            f"{start}. Raise sparsity.end."
        )
    return Plan(start, end)


def _start(sparsity: DictConfig, total: float) -> int:
    if sparsity.recipe in ("from_start", "one_shot") or sparsity.dense_ckpt is not None:
        return 0
    if sparsity.start_step is None:
        return _share(sparsity, "start", total)
    if sparsity.start_step >= total:
        raise UserError(
            f"sparsity.start_step={sparsity.start_step} lies beyond the run, which has "
            f"{how_many(int(total), 'step')}. Lower it."
        )
    return sparsity.start_step


def _share(sparsity: DictConfig, key: str, total: float) -> int:
    """The step at which this share of the run is over."""
    share = sparsity[key]
    if share == 0:
        return 0
    if math.isinf(total):
        way = "trainer.max_steps" if key == "end" else "trainer.max_steps or sparsity.start_step"
        raise UserError(
            f"sparsity.{key}={share:g} is a share of a run whose number of steps is unknown. Set {way}."
        )
    return int(min(round(share * total), max(total - 1, 0)))


class Apex(Pattern):
    """A pattern whose masks apex chooses, for the weights of one model."""

    backend = "apex"
    name = ""

    def __init__(self, pattern: Pattern, model: nn.Module):
        self.pattern, self.model = pattern, model
        self.name, self.rows, self.columns = pattern.name, pattern.rows, pattern.columns
        self.calculator = f"m4n2_2d_{pattern.search}" if isinstance(pattern, Tiles) else "m4n2_1d"

    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        with float32_matmuls(MODES["fp32"], emulate=False):  # apex adds magnitudes by a product
            return ask(self.model, weights, self.calculator)

    def holds(self, weight: Tensor) -> Tensor:
        return self.pattern.holds(weight)

    def misfit(self, shape: Sequence[int]) -> str | None:
        if shape[0] % 8 or shape[1] % 16:
            return f"{shape[0]}×{shape[1]}: apex only prunes multiples of 8×16"
        return self.pattern.misfit(shape)


@torch.no_grad()
def ask(model: nn.Module, weights: Sequence[Tensor], calculator: str) -> list[Tensor]:
    """apex's masks for `weights` of `model`: bool, True stays. The model is dense again afterwards.

    Raises UserError if apex fails; the model may then be partly pruned.
    """
    wanted, owners = {id(weight) for weight in weights}, {}
    for name, layer in model.named_modules():
        if held := {id(weight) for weight in layer.parameters(recurse=False)} & wanted:
            owners[name] = layer
            wanted -= held  # a shared weight counts for its first layer
    kinds = {
        type(layer): ATTENTION if isinstance(layer, nn.MultiheadAttention) else ["weight"]
        for layer in owners.values()
    }
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():  # ASP prints even at verbosity 0
            warnings.simplefilter("ignore")
            from apex.contrib.sparsity import ASP

            with emptied(ASP):
                # allow_recompute_mask makes apex keep the pruned values, so that it can restore them
                ASP.init_model_for_pruning(
                    model, calculator, verbosity=0, allow_recompute_mask=True, whitelist=[],
                    allowed_layer_names=list(owners), custom_layer_dict=kinds, allow_permutation=False,
                )  # fmt: skip
                ASP.compute_sparse_masks()
                chosen = {id(weight): mask.bool().clone() for *_, weight, mask, _ in sparse_parameters(ASP)}
                ASP.restore_pruned_weights()
    except Exception as error:
        what = f"{calculator} masks ({type(error).__name__}: {one_line(error)})"
        raise UserError(f"sparsity.backend=apex: this apex fails at {what}. {USE}.") from error
    for name, layer in owners.items():
        if not chosen.keys() & {id(weight) for weight in layer.parameters(recurse=False)}:
            what = f"apex's ASP cannot prune {type(layer).__name__} ({name})"
            raise UserError(f"sparsity.backend=apex: {what}. {USE}, or sparsity.skip.")
    return [laid_out_as(chosen[id(weight)], weight) for weight in weights]


@contextmanager
def emptied(asp: Any) -> Iterator[None]:
    """Reset ASP on entry and on exit, and remove its mask buffers from the model."""
    empty(asp)
    try:
        yield
    finally:
        for _, layer, name, *_ in sparse_parameters(asp):
            for kind in ("mask", "pruned_p"):
                buffers(layer).pop(f"__{name.rpartition('.')[2]}_mma_{kind}", None)
        empty(asp)
