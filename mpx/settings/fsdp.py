"""Refuse settings that trainer.strategy=fsdp does not support, since they need whole weights outside the model's forward pass."""

from omegaconf import DictConfig

from mpx.errors import UserError


def check_fsdp(cfg: DictConfig) -> None:
    """Raise UserError for the first setting that does not work with sharded weights."""
    if cfg.trainer.strategy != "fsdp":
        return
    if cfg.precision.mode == "o2":
        raise _refused("precision=o2", "its FP16 copies are made of whole FP32 weights", "precision=amp")
    sparsity = cfg.sparsity
    if sparsity.pattern == "dense":
        return
    if sparsity.get("backend") == "apex":
        raise _refused("sparsity.backend=apex", "apex's ASP masks whole weights", "sparsity.backend=mpx")
    if sparsity.recipe == "sr_ste":
        raise _refused("sparsity.recipe=sr_ste", "it would gather all weights at every step", "sparsity.recipe=asp")
    for key, why in (("permute", "channels are reordered in whole weights"), ("sensitivity", "it prunes whole layers one by one")):
        if sparsity.get(key):
            raise _refused(f"sparsity.{key}=true", why, f"sparsity.{key}=false")


def _refused(what: str, why: str, instead: str) -> UserError:
    return UserError(f"{what} is not possible with trainer.strategy=fsdp: {why}. Use {instead}, or trainer.strategy=ddp.")
