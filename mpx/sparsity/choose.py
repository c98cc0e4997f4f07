"""Build the pattern, the rules and the recipe that a run's sparsity settings (`cfg`) name."""

from omegaconf import DictConfig

from mpx.sparsity.layers import Rules
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.plan import Plan
from mpx.sparsity.recipes import Gradual, OneShot, Recipe
from mpx.sparsity.sr_ste import SrSte
from mpx.sparsity.tiles import Tiles
from mpx.sparsity.unstructured import Unstructured


def choose_pattern(cfg: DictConfig) -> Pattern:
    if cfg.pattern == "2of4_2d":
        return Tiles(cfg.search)
    if cfg.pattern == "unstructured":
        return Unstructured(cfg.density)
    return NofM(cfg.n, cfg.m) if cfg.pattern == "nofm" else NofM(2, 4)


def choose_rules(cfg: DictConfig) -> Rules:
    return Rules(
        shape=cfg.shape_rule, types=tuple(cfg.types), skip=tuple(cfg.skip), only=tuple(cfg.only),
        min_size=cfg.min_size, dense_first=cfg.dense_first, dense_last=cfg.dense_last,
    )  # fmt: skip


def choose_recipe(cfg: DictConfig, plan: Plan) -> Recipe:
    if cfg.recipe == "sr_ste":
        return SrSte(plan, decay=cfg.decay)
    if (kind := {"one_shot": OneShot, "gradual": Gradual}.get(cfg.recipe)) is not None:
        return kind(cfg.recipe, plan)
    return Recipe(cfg.recipe, plan, remember=plan.every is not None)
