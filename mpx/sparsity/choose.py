"""Patterns, rules and recipes by the names that conf/sparsity gives them."""

from omegaconf import DictConfig

from mpx.sparsity.layers import Rules
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.recipe import Pruning
from mpx.sparsity.recipes import Gradual, OneShot, Recipe
from mpx.sparsity.sr_ste import SrSte
from mpx.sparsity.tiles import Tiles
from mpx.sparsity.unstructured import Unstructured


def pruning(cfg: DictConfig) -> Pruning:
    """cfg: the sparsity settings of a run that prunes."""
    return Pruning(_pattern(cfg), _rules(cfg), _recipe(cfg))


def _pattern(cfg: DictConfig) -> Pattern:
    if cfg.pattern == "2of4_2d":
        return Tiles(cfg.search)
    if cfg.pattern == "unstructured":
        return Unstructured(cfg.density)
    return NofM(cfg.n, cfg.m) if cfg.pattern == "nofm" else NofM(2, 4)


def _rules(cfg: DictConfig) -> Rules:
    return Rules(
        shape=cfg.shape_rule, types=tuple(cfg.types), skip=tuple(cfg.skip), only=tuple(cfg.only),
        min_size=cfg.min_size, dense_first=cfg.dense_first, dense_last=cfg.dense_last,
    )  # fmt: skip


def _recipe(cfg: DictConfig) -> Recipe:
    if cfg.recipe == "sr_ste":
        return SrSte(decay=cfg.decay)
    if cfg.recipe in ("one_shot", "gradual"):
        return (OneShot if cfg.recipe == "one_shot" else Gradual)(cfg.recipe, recompute=False)
    return Recipe(cfg.recipe, recompute=cfg.recompute_every is not None)
