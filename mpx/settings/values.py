"""Check each value of a configuration against the rule of its key."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from mpx.errors import UserError, nearest
from mpx.settings.fields import FIELDS, FREE, FREE_BELOW
from mpx.settings.rules import Rule, as_typed

MISSING = "???"  # OmegaConf's mark for a value that the user must give


def as_dict(settings: Any) -> dict[str, Any]:
    """The settings of a DictConfig, a mapping or a namespace as plain values, interpolations resolved."""
    if OmegaConf.is_config(settings):
        plain: Any = OmegaConf.to_container(settings, resolve=True)
        return plain
    return dict(settings if isinstance(settings, Mapping) else vars(settings))


def leaves(
    cfg: Mapping[str, Any], *, allow_missing: bool = False, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Every (dotted key, value) with interpolations resolved; lists are values, free dictionaries are one
    value.

    Raises UserError for a value that is still ???, unless `allow_missing`.
    """
    for name in cfg:
        key = f"{prefix}{name}"
        if "." in str(name) and not key.startswith((*FREE, *FREE_BELOW)):
            raise _not_nested(key, name)
        value = MISSING if OmegaConf.is_config(cfg) and OmegaConf.is_missing(cfg, name) else cfg[name]
        if value == MISSING and not allow_missing:
            raise not_set(key)
        if isinstance(value, Mapping) and key not in FREE and (value or _has_keys(key)):
            yield from leaves(value, allow_missing=allow_missing, prefix=f"{key}.")
        else:
            yield key, OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _has_keys(name: str) -> bool:
    """Whether it is the name of settings with keys of their own, of which a mapping may have none."""
    return any(key.startswith(f"{name}.") for key in FIELDS)


REMOVED = {  # keys that mpx had -> what to use instead
    "gpu_share": "Each job has its GPU to itself. Use hydra.launcher.n_jobs=N with N GPUs.",
    "trainer.strategy": "Several devices train by DDP. Leave it out.",
    "data.global_batch_size": "Use data.batch_size, the samples per step of one device.",
    "fail_fast": "Ctrl-C ends a sweep, and the same command goes on with it.",
    "sparsity.recompute_every": "Use sparsity.recipe=sr_ste, which chooses the masks at every step.",
    "sparsity.start_epoch": "Use sparsity.start, a share of the run, or sparsity.start_step.",
    **{f"sparsity.{key}": "Use sparsity.skip=[NAME]." for key in ("min_size", "dense_first", "dense_last")},
}


def removed(key: str) -> str | None:
    """The line for a key that mpx.train had."""
    return f"{key} is not a setting of mpx.train. {REMOVED[key]}" if key in REMOVED else None


def check_value(key: str, value: Any, rules: Mapping[str, Rule] = FIELDS, program: str = "mpx.train") -> None:
    """Raise UserError if `program` has no such key or the value breaks the key's rule."""
    if key in FREE:
        if not isinstance(value, dict):
            raise UserError(
                f"{key}={as_typed(value)} must be names with values. For example +{key}.width=32."
            )
        return
    rule = rules.get(key)
    if rule is None and key.startswith(FREE_BELOW):
        return
    if (line := removed(key)) is not None:
        raise UserError(line)
    if rule is None:
        raise UserError(
            f"{key} is not a setting of {program}.{nearest(key, rules)}{_argument(key)} See "
            f"python -m {program} --help."
        )
    if not rule.fits(value):
        too_large = rule.largest is not None and type(value) is int and value > rule.largest
        allowed = f"at most {rule.largest}" if too_large else rule.allowed
        raise UserError(f"{key}={as_typed(value)} must be {allowed}. For example {key}={rule.example}.")


def key_of(word: str) -> str:
    """The key of a setting as typed: `key` of `++key=value`."""
    return word.partition("=")[0].lstrip("+")


def _argument(key: str) -> str:
    """How to give a class of the user's own an argument, for an unknown key that may be meant as one."""
    group, _, name = key.partition(".")
    return (
        f" An argument of your own class is +{group}.kwargs.{name}=VALUE."
        if f"{group}.kwargs" in FREE and "." not in name
        else ""
    )


def not_set(key: str) -> UserError:
    """The error for a key that has no value."""
    example = FIELDS[key].example if key in FIELDS else "VALUE"
    return UserError(f"{key} is not set and has no default. Give it, for example {key}={example}.")


def _not_nested(key: str, name: Any) -> UserError:
    """The error for a name with a dot, which is no path to OmegaConf."""
    parts = str(name).split(".")  # YAML has numbers as names, too
    nested = ": {".join(parts) + ": VALUE" + "}" * (len(parts) - 1)
    return UserError(
        f"{key}: a dotted key sets nothing in a YAML file or within braces. Write {nested} there."
    )
