"""From the configuration's containers to Python's own, which libraries expect."""

from omegaconf import OmegaConf


def plain(value) -> dict:
    """A DictConfig, mapping or None as a dict of plain values, interpolations resolved."""
    if value is None:
        return {}
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else dict(value)
