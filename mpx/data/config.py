"""Settings: one way to read them, one wording for the errors in them."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

from mpx.errors import UserError, nearest


def fields(cfg) -> SimpleNamespace:
    """The fields of a DictConfig, mapping or namespace, resolved, as attributes.

    Raises UserError where a field that the user must give is still `???`.
    """
    if hasattr(cfg, "_metadata"):  # a DictConfig; omegaconf is imported only if the caller already did
        from omegaconf import OmegaConf

        missing = sorted(key for key in cfg if OmegaConf.is_missing(cfg, key))
        if missing:
            raise UserError(f"data.{missing[0]} is not set: data={cfg.get('name')} needs it, add data.{missing[0]}=...")
        cfg = OmegaConf.to_container(cfg, resolve=True)
    return SimpleNamespace(**(cfg if isinstance(cfg, Mapping) else vars(cfg)))


def one_of(key: str, value, allowed: Iterable[str]) -> str:
    """`value` if it is allowed. Raises UserError that lists what is."""
    if value not in (allowed := list(allowed)):
        raise UserError(f"{key}={value} is not allowed: choose one of {', '.join(allowed)}.{nearest(str(value), allowed)}")
    return value


def whole(key: str, value, low: int, high: int | None = None, otherwise: str = "") -> int:
    """`value` if it is a whole number in [low, high]. Raises UserError that names the range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        limit = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{key}={value} is not allowed: give {otherwise}a whole number {limit}")
    return value


def share(key: str, value) -> float:
    """`value` if it lies strictly between 0 and 1. Raises UserError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise UserError(f"{key}={value} is not allowed: give a share above 0 and below 1, e.g. {key}=0.1")
    return float(value)
