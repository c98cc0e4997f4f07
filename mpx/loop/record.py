"""What is written of a loop: result.json from its beginning to its end, and the scalars."""

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from mpx.errors import Diverged, UserError
from mpx.loop import facts
from mpx.loop.ranks import WAIT_S, Ranks
from mpx.loop.scalars import Scalars, Value
from mpx.loop.steps import Steps
from mpx.measure.batches import usual_size
from mpx.measure.environment import environment, host_of_rank_0, joined
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.memory import peak_memory
from mpx.processes import not_finite
from mpx.record.result import line_of, note_validation, words_of_validation
from mpx.runs import signals
from mpx.runs.own import OwnRun

LOSS = "train/loss"
Sparsity = Callable[[], dict[str, Any]] | None  # returns the sparsity part of result.json; None: it is measured from the model


class LoopRecord:
    """Made when the loop has its first step or value, in the process of rank 0. It begins the run's folder; then `conclude` or `break_off`.

    device: that is timed. model, scaler: as in Recorder.
    """

    def __init__(
        self, run: OwnRun, ranks: Ranks, steps: Steps, *, device: torch.device | str, model: nn.Module | None, scaler: Any, output_dir: str
    ):
        device = torch.device(device)
        run.record["config"]["trainer"] = {"devices": ranks.world}
        here = environment([_index_of(device)] if device.type == "cuda" else "auto")
        run.begin(here | {"host": host_of_rank_0(here["host"])})
        self._run, self._ranks, self._steps, self._model, self._output_dir = run, ranks, steps, model, output_dir
        self._setting, self._folder = run.record["setting"], run.folder.path
        self._metrics: dict[str, float] = {}
        self._validated: int | None = None  # the step of the newest validation
        self._earlier = 0  # steps before the checkpoint from which the loop goes on
        self._scalars = Scalars(self._folder, self._setting, run.trial, run.config, run.record["environment"])
        self._exclusivity = ExclusivityChecks(device)
        self._exclusivity.look()
        self._scaler, self._first_scale = None, None
        if scaler is not None:
            self.scaled(scaler)
        steps.start(device)

    def scaled(self, scaler: Any) -> None:
        self._scaler, self._first_scale = scaler, scaler.get_scale()

    @property
    def has_steps(self) -> bool:
        """Of this process, not of a checkpoint."""
        return self._steps.number > self._earlier

    def refute(self, reason: str) -> bool:
        """The speed does not count. Returns whether that is new."""
        return self._exclusivity.refute(reason)

    def continued(self, steps: int) -> None:
        """The loop goes on from a checkpoint, which was saved after `steps` steps."""
        self._earlier = steps
        self._run.record["environment"]["resumed_from_steps"] = [steps]

    def log(self, values: Mapping[str, Value], step: int) -> None:
        self._scalars.add(values, step)

    def metrics(self, values: Mapping[str, float]) -> None:
        self._metrics |= values
        if any(name.startswith("val") for name in values):
            self._validated = self._steps.number
        self.log({name: value for name, value in values.items() if not name.startswith("test/")}, self._steps.number)

    def leave(self, then: str) -> None:
        """The window ends with the last step; the device is waited for."""
        self._steps.windows.leave(then)
        self._scalars.write()
        self._exclusivity.look()

    def break_off(self, error: BaseException, sparsity: Sparsity) -> None:
        """Record as much as is known."""
        self._steps.broke()
        self._steps.windows.interrupt()
        for part in (lambda: self._fill(sparsity), self._close, lambda: self._run.write(self._status(error), line_of(error))):
            try:
                part()
            except Exception as failed:  # it must not hide the first error
                print(f"mpx.Recorder: {self._folder} is not complete ({type(failed).__name__}: {failed})", file=sys.stderr)

    def _status(self, error: BaseException) -> str:
        """A loop may raise its own error about a loss that is NaN: left out as failed, the setting would be judged by its other seeds."""
        if signals.ends(error):
            return "interrupted"
        with suppress(Exception):  # after an error of the device, its weights cannot be read
            if isinstance(error, Diverged) or self._not_finite() is not None:
                return "diverged"
        return "failed"

    def conclude(self, sparsity: Sparsity) -> None:
        """Raises UserError for a finished model without the pattern that the setting names."""
        try:
            self.leave("end")
            self._steps.windows.finish_with_last_step()
            unknown = self._fill(sparsity, WAIT_S)
            self._close()
        except BaseException as failed:
            self.break_off(failed, sparsity)
            raise
        if self._run.record["sparsity"]["verified"] is False:
            pattern = self._setting["sparsity"]
            line = f"setting: sparsity={pattern}, but the finished model does not have that pattern. Prune it, or name what it is."
            self._run.write("failed", line)
            raise UserError(line)
        if unknown is not None:
            print(f"mpx.Recorder: {unknown}")
        if (judged := self._run.record["metric"]) is not None and judged["name"] not in self._metrics:
            print(f"mpx.Recorder: metric={judged['name']} was never given to metrics, which had {', '.join(self._metrics) or 'nothing'}")
        line = self._not_finite()
        self._run.write("completed" if line is None else "diverged", line)
        record = self._run.record
        print(f"{record['status']}, recorded in {self._folder}{words_of_validation(record['environment'])}")

    def _not_finite(self) -> str | None:
        """One line about a loss, a metric or a weight that is not finite: an accuracy stays finite when all weights are NaN."""
        found = {LOSS: self._scalars.newest.get(LOSS, 0.0)} | self._metrics
        if (name := next((name for name, value in found.items() if not math.isfinite(value)), None)) is not None:
            return f"the {name.replace('/', ' ')} is infinite or NaN."
        name = not_finite(self._model) if self._model is not None else None
        return None if name is None else f"the weights of {name} are infinite or NaN."

    def _fill(self, sparsity: Sparsity, wait_s: float = 0) -> str | None:
        """The parts of result.json that are known after training, however it ended. wait_s: for other processes, at most.

        Returns why the samples of other processes are unknown, if they are.
        """
        record, steps = self._run.record, self._steps
        record["metrics"] = self._metrics
        note_validation(record, self._validated, steps.number)
        each, unknown = self._ranks.samples(steps.windows.measured_steps, steps.windows.samples, wait_s)
        if unknown is None:
            record["config"]["data"]["batch_size"] = usual_size(steps.samples)
        if (hosts := self._ranks.hosts()) is not None:
            record["environment"]["host"] = joined(hosts)
        record["memory"] = peak_memory(steps.device)
        record["precision"] = facts.precision(self._setting["precision"], steps, self._scaler, self._first_scale)
        record["speed"] = facts.speed(steps, self._exclusivity, self._output_dir, self._ranks.world, each=each, unknown=unknown)
        if self._earlier:
            record["speed"] |= {"time_to_train_s": None, "time_to_train_s_reason": f"the first {self._earlier} steps were trained before"}
        record["sparsity"] = sparsity() if sparsity is not None else facts.sparsity(self._setting["sparsity"], self._model)
        return unknown

    def _close(self) -> None:
        """Write the last scalars."""
        self._scalars.write()
        self._scalars.close(self._run.record, self._steps.number)


def _index_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
