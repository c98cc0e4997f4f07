"""What a command asks for: the name of the setting, the settings that change the result, and the record of a run that has not begun."""

import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mpx.record.result import UNKNOWN, metric_name
from mpx.runs.inputs import contents, inputs
from mpx.runs.name import comparable, differences, named, setting_name
from mpx.settings.project import is_project
from mpx.settings.values import as_dict


@dataclass(frozen=True)
class Description:
    trial: str  # the setting's name without the seed, which is also the name of its folder
    comparable: dict[str, Any]  # the settings that change the result, flat
    record: dict[str, Any]  # result.json of a run that did not get as far as training

    @property
    def config(self) -> str:
        """The text of config.yaml."""
        parts = {"comparable": self.comparable, "trial": self.trial} | {key: self.record[key] for key in ("config", "data", "inputs")}
        return OmegaConf.to_yaml(OmegaConf.create(parts))


def describe(cfg: DictConfig) -> Description:
    """Raises UserError for a key that no choice has."""
    chosen, changed, config = named(cfg), differences(cfg), as_dict(cfg)
    record: dict[str, Any] = {
        "status": "failed",
        "setting": chosen | changed | {"seed": cfg.seed},
        "config": config,
        "data": {"name": chosen["data"], "contents": None if is_project(cfg) else contents(config["data"])},
        "inputs": inputs(config),
    }
    record |= {"label": cfg.label} if cfg.label is not None else {}
    if is_project(cfg):
        record["metric"] = None if cfg.metric is None else {"name": metric_name(cfg.metric), "goal": cfg.metric_goal}
        record["config"]["data"] = {}  # its batch size, once it is known
    record |= copy.deepcopy(UNKNOWN) | {"environment": {"started_at": datetime.now(UTC).isoformat(timespec="seconds")}}
    return Description(setting_name(chosen, changed), comparable(cfg), record)
