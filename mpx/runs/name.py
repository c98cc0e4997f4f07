"""What a command asks for: the name of its setting, `<model>-<data>-<precision>-<sparsity>` and every other
override that changes the result, and the record of a run that has not begun.
"""

import copy
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from mpx.errors import UserError
from mpx.runs.inputs import contents, inputs
from mpx.runs.result import UNKNOWN, metric_name, one_number
from mpx.settings import project
from mpx.settings.choices import no_such_key
from mpx.settings.data import OWN_FAMILIES, display_name, family, pretrained
from mpx.settings.fields import FREE, FREE_BELOW, NAMED, changes_result
from mpx.settings.values import as_dict, leaves

# groups whose choice is part of the name only where it is not the default
OTHERS = ("optimizer", "schedule", "trainer")
ALIASES = {"precision": {"amp_fp16": "amp"}}
MAX_NAME_LENGTH = 150  # characters; file systems allow 255


def choices() -> dict[str, str]:
    """The file chosen in each group, with aliases made canonical."""
    chosen = HydraConfig.get().runtime.choices
    return {group: ALIASES.get(group, {}).get(chosen[group], chosen[group]) for group in (*NAMED, *OTHERS)}


def named(cfg: DictConfig) -> dict[str, str]:
    """The first four words of a setting's name: the choices, or the names that the user gave data and
    project.
    """
    chosen = choices()
    if project.is_project(cfg):
        own = {group: spell(name) for group, name in project.names(cfg).items()}
    else:
        own = {"data": display_name(cfg.data)} if family(cfg.data) in OWN_FAMILIES else {}
    return {group: chosen[group] for group in NAMED} | own


def differences(cfg: DictConfig) -> dict[str, Any]:
    """The settings in which `cfg` differs from what its four named choices alone give.

    Raises UserError for a key that no choice has (added with +).
    """
    chosen = {group: choice for group, choice in choices().items() if choice is not None}
    named = [project.CHOICE] if project.is_project(cfg) else []
    named += [f"{group}={chosen[group]}" for group in NAMED if group in chosen]
    base = compose("train", named, return_hydra_config=True)
    with open_dict(base):
        usual = base.pop("hydra").runtime.choices
    changed = {group: chosen[group] for group in OTHERS if group in chosen and chosen[group] != usual[group]}
    if changed:  # whose values are then no further difference
        base = compose("train", [*named, *(f"{group}={choice}" for group, choice in changed.items())])
    known = {key for key, _ in leaves(base, allow_missing=True)}
    if added := [
        key for key, _ in leaves(cfg) if key not in known and not key.startswith((*FREE_BELOW, "until."))
    ]:
        raise UserError(no_such_key(min(added)))
    usual_values = comparable(base)
    if not project.is_project(cfg) and (model := pretrained(cfg.model)) is not None:
        usual_values["data.tokenizer"] = model  # which the model's key says already
    differing = {
        key: value
        for key, value in comparable(cfg).items()
        if key not in usual_values or value != usual_values[key]
    }
    said = {f"{part}._target_" for part in project.PARTS}  # by the names of model and data
    return changed | {key: value for key, value in differing.items() if key not in said}


def comparable(cfg: DictConfig) -> dict[str, Any]:
    """Every setting that changes the result, as dotted keys."""
    return {
        # 1 is one batch, 1.0 is all of them
        key: f"{value}batches" if ".limit_" in key and isinstance(value, int) else value
        for name, content in leaves(cfg, allow_missing=True)
        for key, value in (
            [(f"{name}.{key}", value) for key, value in content.items()]
            if name in FREE
            else [(name, content)]
        )
        if changes_result(key)
    }


def setting_name(chosen: dict[str, str], changed: dict[str, Any]) -> str:
    """The folder's name, for example `resnet20-digits-amp-2of4-optimizer.lr=0.05`. A name that would be too
    long ends in a hash.
    """
    changed = {key: one_number(value) for key, value in changed.items()}
    short = "-".join(chosen[group] for group in NAMED)
    full = short + "".join(f"-{key}={spell(changed[key])}" for key in sorted(changed))
    if len(full) <= MAX_NAME_LENGTH:
        return full
    digest = hashlib.sha256(repr(sorted(changed.items())).encode()).hexdigest()[:10]
    return f"{full[: MAX_NAME_LENGTH - 11].rstrip('-')}-{digest}"


def spell(value: Any) -> str:
    """A value as part of a file name. Separators and spaces become '_'; a hash then keeps different values
    apart.
    """
    plain = (
        str(value)
        if not isinstance(value, float)
        else f"{value:g}"
        if float(f"{value:g}") == value
        else repr(value)
    )
    safe = re.sub(r"[^\w.+,=-]", "_", plain)
    return safe if safe == plain else f"{safe}~{hashlib.sha256(plain.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Description:
    trial: str  # the setting's name without the seed, which is also the name of its folder
    comparable: dict[str, Any]  # the settings that change the result, flat
    record: dict[str, Any]  # result.json of a run that did not get as far as training

    @property
    def config(self) -> str:
        """The text of config.yaml."""
        parts = {"comparable": self.comparable, "trial": self.trial} | {
            key: self.record[key] for key in ("config", "data", "inputs")
        }
        return OmegaConf.to_yaml(OmegaConf.create(parts))


def describe(cfg: DictConfig) -> Description:
    """Raises UserError for a key that no choice has."""
    chosen, changed, config = named(cfg), differences(cfg), as_dict(cfg)
    record: dict[str, Any] = {
        "status": "failed",
        "setting": chosen | changed | {"seed": cfg.seed},
        "config": config,
        "data": {
            "name": chosen["data"],
            "contents": None if project.is_project(cfg) else contents(config["data"]),
        },
        "inputs": inputs(config),
    }
    record |= {"label": cfg.label} if cfg.label is not None else {}
    if project.is_project(cfg):
        record["metric"] = (
            None if cfg.metric is None else {"name": metric_name(cfg.metric), "goal": cfg.metric_goal}
        )
        record["config"]["data"] = {}  # its batch size, once it is known
    record |= copy.deepcopy(UNKNOWN) | {
        "environment": {"started_at": datetime.now(UTC).isoformat(timespec="seconds")}
    }
    return Description(setting_name(chosen, changed), comparable(cfg), record)
