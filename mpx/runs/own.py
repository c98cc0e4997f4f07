"""The folder and the record of a run whose loop is not mpx's: outputs/<study>/<setting>/seed<N>/result.json, which mpx.compare reads."""

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from mpx.record.result import UNKNOWN, metric_name, write_result
from mpx.runs.folder import CONFIG, OWN_LOOP, Folder, claim, locked
from mpx.runs.name import setting_name
from mpx.settings.fields import NAMED


class OwnRun:
    """One run, in this order: `claim` its folder, `begin`, fill in the parts of `record` (result.json's), `write` it, `end`.

    setting: model, data, precision, sparsity, seed, and whatever else changes the result, which then is part of the folder's name.
    metric, goal: the value by which runs are compared, and whether it should rise (max) or fall (min). label: a name for tables.
    if_exists: what to do if the run's folder exists: new (seed0-2 beside it), overwrite or error.
    """

    def __init__(
        self, study: str, setting: Mapping[str, Any], *, output_dir: str | Path, if_exists: str, metric: str | None, goal: str,
        label: str | None = None,
    ):  # fmt: skip
        self.comparable = {key: value for key, value in setting.items() if key != "seed"}
        self.trial = setting_name(setting, {key: value for key, value in self.comparable.items() if key not in NAMED})
        self.setting_dir, self.seed, self.if_exists = Path(output_dir) / study / self.trial, setting["seed"], if_exists
        self.folder: Folder | None = None
        config = {"loop": OWN_LOOP, "study": study, "data": {"batch_size": None}, "trainer": {}}
        self.record: dict[str, Any] = {"status": "failed", "setting": dict(setting), "config": config}
        self.record |= {"metric": None if metric is None else {"name": metric_name(metric), "goal": goal}}
        self.record |= ({"label": label} if label is not None else {}) | copy.deepcopy(UNKNOWN)

    @property
    def config(self) -> str:
        """The text of config.yaml."""
        parts = {"comparable": self.comparable, "trial": self.trial, "config": self.record["config"]}
        return yaml.safe_dump(parts, sort_keys=False)

    def claim(self, continued: Path | None = None) -> Path:
        """Find or make the folder, and lock it. continued: the folder of the run that this one continues. Returns the folder.

        Raises UserError where it is not writable, in use, or exists with if_exists="error".
        """
        if continued is not None and (continued / CONFIG).is_file():
            self.folder = locked(continued, begun=True)
        else:
            self.folder = claim(self.setting_dir, self.seed, self.if_exists, self.comparable, in_sweep=False, ckpt_path=None)
        return self.folder.path

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Training begins. environment: of mpx.measure.environment."""
        started = {"started_at": datetime.now(UTC).isoformat(timespec="seconds"), "resumed_from_steps": []}
        self.record["environment"] = dict(environment) | started
        if not self.folder.begun:
            self.folder.begin(self.config)

    def write(self, status: str, error: str | None = None) -> None:
        """Write result.json. status: completed, diverged, failed or interrupted. error: one line."""
        self.record["status"] = status
        self.record.pop("error", None)
        self.record |= {"error": error} if error is not None else {}
        self.record = write_result(self.folder.path, self.record)

    def end(self) -> None:
        """Release the folder. Without `begin`, nothing is left of it."""
        if self.folder.begun:
            self.folder.lock.release()
        else:
            self.folder.abandon()
