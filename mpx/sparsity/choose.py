"""Build the pattern, the rules and the recipe that a run's sparsity settings name."""

from omegaconf import DictConfig

from mpx.sparsity.layers import Rules
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.plan import Plan
from mpx.sparsity.recipes import Gradual, OneShot, Recipe
from mpx.sparsity.sr_ste import SrSte
from mpx.sparsity.tiles import Tiles
from mpx.sparsity.unstructured import Unstructured


def choose_pattern(sparsity: DictConfig) -> Pattern:
    if sparsity.pattern == "2of4_2d":
        return Tiles(sparsity.search)
    if sparsity.pattern == "unstructured":
        return Unstructured(sparsity.density)
    return NofM(sparsity.n, sparsity.m) if sparsity.pattern == "nofm" else NofM(2, 4)


def choose_rules(sparsity: DictConfig) -> Rules:
    return Rules(
        shape=sparsity.shape_rule, types=tuple(sparsity.types), skip=tuple(sparsity.skip), only=tuple(sparsity.only),
        min_size=sparsity.min_size, dense_first=sparsity.dense_first, dense_last=sparsity.dense_last,
    )  # fmt: skip


def choose_recipe(sparsity: DictConfig, plan: Plan) -> Recipe:
    if sparsity.recipe == "sr_ste":
        return SrSte(plan, decay=sparsity.decay)
    if (kind := {"one_shot": OneShot, "gradual": Gradual}.get(sparsity.recipe)) is not None:
        return kind(sparsity.recipe, plan)
    return Recipe(sparsity.recipe, plan, remember=plan.every is not None)
