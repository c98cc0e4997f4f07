"""Build the pattern, the rules, the plan and the recipe that a run's sparsity settings name."""

import math

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.sparsity.layers import Rules
from mpx.sparsity.patterns import NofM, Pattern, Unstructured
from mpx.sparsity.recipes import Gradual, OneShot, Plan, Recipe, SrSte
from mpx.sparsity.tiles import Tiles
from mpx.system.printing import how_many


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
