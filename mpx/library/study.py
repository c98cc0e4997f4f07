"""The folder and the record of one run, for any loop: outputs/<study>/<setting>/seed<N>/result.json, which mpx.compare reads."""

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from mpx.measure.environment import environment
from mpx.runs import folder as folders
from mpx.runs.name import setting_name, spell
from mpx.runs.record import UNKNOWN, metric_name, write_result
from mpx.settings.fields import RUN
from mpx.settings.recorder import RECORDER
from mpx.settings.values import check_value


class RunRecord:
    """One run: fill in the parts of `record` (result.json's), and `write` it.

    changes: settings beyond the four that change the result, such as {"lr": 0.1}; they are part of the folder's name. metric, goal: the
    value by which runs are compared, and whether it should rise (max) or fall (min).
    if_exists: what to do if the run's folder exists: new (seed0-2 beside it), overwrite or error.
    """

    def __init__(
        self,
        study: str,
        *,
        model: str,
        data: str,
        precision: str,
        sparsity: str,
        seed: int,
        changes: Mapping[str, Any] | None = None,
        metric: str | None = None,
        goal: str = "max",
        output_dir: str | Path = "outputs",
        if_exists: str = "new",
    ):
        check_value("seed", seed, RUN, "mpx.Record")
        for name, value in {"study": study, "metric_goal": goal, "if_exists": if_exists}.items():
            check_value(name, value, RECORDER, "mpx.Record")
        changes = dict(changes or {})
        chosen = {"model": spell(model), "data": spell(data), "precision": precision, "sparsity": sparsity}
        self.seed, self.if_exists, self.comparable = seed, if_exists, chosen | changes
        self.trial = setting_name(chosen, changes)
        self.setting_dir = Path(output_dir) / study / self.trial
        self.folder: folders.Folder | None = None
        self.record: dict[str, Any] = {"status": "failed", "setting": chosen | changes | {"seed": seed}}
        self.record |= {"metric": None if metric is None else {"name": metric_name(metric), "goal": goal}}
        config = {"loop": folders.OWN_LOOP, "study": study, "seed": seed, "data": {}, "trainer": {}}
        self.record |= {"config": config | changes} | copy.deepcopy(UNKNOWN)
        self.record["environment"] = environment() | {"started_at": datetime.now(UTC).isoformat(timespec="seconds")}

    def begin(self, continued: Path | None = None) -> Path:
        """Find or make the folder and lock it. continued: the folder of the run that this one continues. Returns the folder.

        Raises UserError where it is not writable, in use, or exists with if_exists="error".
        """
        if continued is not None and (continued / folders.CONFIG).is_file():
            self.folder = folders.locked(folders.Folder(continued, begun=True))
        else:
            self.folder = folders.claim(self.setting_dir, self.seed, self.if_exists, self.comparable, in_sweep=False, ckpt_path=None)
            text = yaml.safe_dump({"comparable": self.comparable, "trial": self.trial, "config": self.record["config"]}, sort_keys=False)
            self.folder.begin(text)
        return self.folder.path

    def write(self, status: str, error: str | None = None) -> None:
        """Write result.json. status: completed, diverged, failed or interrupted."""
        self.record["status"] = status
        self.record.pop("error", None)
        if error is not None:
            self.record["error"] = error
        write_result(self.folder.path, self.record)

    def end(self) -> None:
        """Release the folder."""
        self.folder.lock.release()
