"""The name of a setting: `<model>-<data>-<precision>-<sparsity>`, then every other override that changes the result."""

import hashlib
import re
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from mpx.errors import UserError
from mpx.settings.fields import changes_result
from mpx.settings.translate import no_such_key
from mpx.settings.values import leaves

NAMED = ("model", "data", "precision", "sparsity")
OTHERS = ("optimizer", "schedule", "trainer")  # groups whose choice is part of the name only where it is not the default
ALIASES = {"precision": {"amp_fp16": "amp"}}
MAX_NAME_LENGTH = 150  # characters; file systems allow 255


def choices() -> dict[str, str]:
    """The file chosen in each group, with aliases made canonical."""
    chosen = HydraConfig.get().runtime.choices
    return {group: ALIASES.get(group, {}).get(chosen[group], chosen[group]) for group in (*NAMED, *OTHERS)}


def differences(cfg: DictConfig) -> dict[str, Any]:
    """The settings in which `cfg` differs from what its four named choices alone give.

    Raises UserError for a key that no choice has (added with +).
    """
    assert GlobalHydra.instance().is_initialized()
    chosen = choices()
    usual = compose("train", [f"{group}={chosen[group]}" for group in NAMED], return_hydra_config=True)
    with open_dict(usual):
        usual_choices = usual.pop("hydra").runtime.choices
    changed = {group: chosen[group] for group in OTHERS if chosen[group] != usual_choices[group]}
    base = compose("train", [f"{group}={chosen[group]}" for group in (*NAMED, *OTHERS)]) if changed else usual
    known = {key for key, _ in leaves(base, allow_missing=True)}
    if added := [key for key, _ in leaves(cfg) if key not in known]:
        raise UserError(no_such_key(min(added)))
    usual_values = comparable(base)
    return changed | {key: value for key, value in comparable(cfg).items() if value != usual_values[key]}


def comparable(cfg: DictConfig) -> dict[str, Any]:
    """Every setting that changes the result, as dotted keys."""
    return {
        key: f"{value}batches" if ".limit_" in key and isinstance(value, int) else value  # 1 is one batch, 1.0 is all of them
        for key, value in leaves(cfg, allow_missing=True)
        if changes_result(key)
    }


def setting_name(chosen: dict[str, str], changed: dict[str, Any]) -> str:
    """The folder's name, for example `resnet20-digits-amp-2of4-optimizer.lr=0.05`. A name that would be too long ends in a hash."""
    short = "-".join(chosen[group] for group in NAMED)
    full = short + "".join(f"-{key}={spell(changed[key])}" for key in sorted(changed))
    if len(full) <= MAX_NAME_LENGTH:
        return full
    digest = hashlib.sha256(repr(sorted(changed.items())).encode()).hexdigest()[:10]
    return f"{full[: MAX_NAME_LENGTH - 11].rstrip('-')}-{digest}"


def spell(value: Any) -> str:
    """A value as part of a file name. Separators and spaces become '_'; a hash then keeps different values apart."""
    plain = str(value) if not isinstance(value, float) else f"{value:g}" if float(f"{value:g}") == value else repr(value)
    safe = re.sub(r"[^\w.+,=-]", "_", plain)
    return safe if safe == plain else f"{safe}~{hashlib.sha256(plain.encode()).hexdigest()[:6]}"
