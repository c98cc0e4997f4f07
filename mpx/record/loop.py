"""The optimizer steps of a recorded loop, and what rank 0 writes of them."""

import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from mpx.errors import UserError
from mpx.measure.batches import Shapes
from mpx.measure.environment import environment, host_of_rank_0
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import model_flops
from mpx.measure.memory import peak_memory, reset_host_peak, reset_peak
from mpx.measure.windows import Windows
from mpx.precision.audit import Audit
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import multiplied_now
from mpx.record.parts import loop_precision_part, loop_sparsity_part, speed_part
from mpx.record.run import RunRecord, Scalars, Value
from mpx.runs import signals
from mpx.system.launch import launch
from mpx.system.processes import rank_and_world

LOSS = "train/loss"
# returns the sparsity part of result.json; None: it is measured from the model
Sparsity = Callable[[], dict[str, Any]] | None


class Loop:
    """A run, from its first step or value on: steps, values, then `end`.

    device: that is timed; None: the model's. model, scaler, observe, output_dir: as of mpx.Recorder.
    """

    def __init__(
        self, run: RunRecord, *, warmup_steps: int, device: torch.device | str | None,
        model: nn.Module | None, scaler: Any,
        observe: bool, output_dir: str,
    ):  # fmt: skip
        self.run, self.model, self.scaler, self.output_dir = run, model, scaler, output_dir
        self.rank, self.world = rank_and_world()
        if self.world == 1 and "TORCHELASTIC_RUN_ID" in os.environ and launch().world > 1:
            raise UserError(
                "mpx.Recorder: call torch.distributed.init_process_group before the first "
                "step, so that each process is known."
            )
        self.device = torch.device(_device_of(model) if device is None else device)
        self.scalars = self._open() if self.rank == 0 else None
        self.exclusivity = ExclusivityChecks(self.device)
        self.observes = observe and self.scalars is not None
        self.first = self._watch()
        self.steps = 0  # also those before the checkpoint from which the loop goes on
        self.earlier = 0  # those alone
        self.batch_size = 0  # samples of the largest step: a last one may be smaller
        self.in_step = self.dropped = False  # within a step; the newest step raised an error
        self.first_scale: float | None = None
        self.sparsity: Sparsity = None
        self.windows = Windows(warmup_steps)
        self.windows.begin(self.device)

    def _open(self) -> Scalars:
        used: Any = "auto"
        if self.device.type == "cuda":
            used = [torch.cuda.current_device() if self.device.index is None else self.device.index]
        here = environment(used)
        self.run.record["config"]["trainer"] = {"devices": self.world}
        self.run.open(here | {"host": host_of_rank_0(here["host"])})
        reset_host_peak()
        reset_peak(self.device)
        return Scalars(self.run)

    def _watch(self) -> FirstStep:
        """Of the first step. FP32 products count as TF32 or FP32 by PyTorch's switches at this moment."""
        formats: Any = multiplied_now(self.device)
        audit = Audit(Mode("observed", **formats), emulate=False, flops_of=model_flops)
        first = FirstStep(audit, then=self._observed)
        first.unlike = None if self.observes else "no step was observed (observe=)"
        return first

    def _observed(self, audit: Audit) -> None:
        """Print where the first step's formats contradict the setting's precision."""
        reset_peak(self.device)  # the observed step ran uncompiled, and its peak is not the training's
        mode = MODES.get(self.run.record["setting"]["precision"])
        if mode is None:
            return
        for kind, share in audit.shares(mode).items():
            if share < 1:
                formats = ", ".join(sorted({row.fmt for row in audit.rows() if row.kind == kind}))
                promised = f"precision={mode.name} means {kind} in {mode.formats[kind]}"
                print(f"mpx.Recorder: {promised}, but the first step ran {formats}")

    def begin_step(self) -> None:
        if self.in_step:
            raise UserError(
                "step within a step: one is an optimizer step. Put it around all batches whose gradients "
                "that step takes."
            )
        if self.dropped:
            self.dropped = False
            self.leave("other")
        if self.first_scale is None and self.scaler is not None:
            self.first_scale = self.scaler.get_scale()
        if self.windows.timing:
            self.windows.waited()
        else:
            self.windows.enter("warmup")  # until a window opens, which it does only for warm steps
            self.windows.open_window()
        self.in_step = True
        if self.observes:
            self.first.begin()

    def end_step(self, samples: int, shapes: Shapes | None) -> None:
        """shapes: of each sample; None: they differ."""
        self.in_step = False
        self.steps += 1
        self.batch_size = max(self.batch_size, samples)
        if self.observes:
            self.first.end(samples, shapes)
        self.windows.stepped(samples * self.world)

    def drop_step(self) -> None:
        """The step raised an error, as when a batch does not fit and the loop goes on: neither its time nor
        its operations count.
        """
        self.in_step, self.dropped = False, True
        self.first.abandon()
        if not self.first.samples:
            self.first = self._watch()

    def log(self, values: Mapping[str, Value]) -> None:
        if self.scalars is not None:
            self.scalars.add(values, self.steps + self.in_step)

    def metrics(self, values: Mapping[str, float]) -> None:
        self.leave("validation")
        self.run.metrics |= values
        self.log({name: value for name, value in values.items() if not name.startswith("test/")})

    def leave(self, then: str) -> None:
        """The window ends with the last step; the device is waited for."""
        self.windows.leave(then)
        if self.scalars is not None:
            self.scalars.write()
            self.exclusivity.look()

    def continued(self, steps: int) -> None:
        self.steps = self.earlier = steps
        self.run.record.setdefault("environment", {})["resumed_from_steps"] = [steps]

    def pruned(self, sparsity: Sparsity) -> None:
        self.sparsity = sparsity
        self.windows.warm_up_again()

    def end(self, error: BaseException | None) -> None:
        """Raises UserError for a finished model without the pattern that the setting names."""
        if self.scalars is None:
            return
        try:
            if error is None:
                self._complete(self.scalars)
        except BaseException as failed:
            self._break_off(self.scalars, failed)
            raise
        if error is not None:
            # torchrun's signal comes once another process has ended, which has led to this error, too
            with signals.held():
                self._break_off(self.scalars, error)

    def _complete(self, scalars: Scalars) -> None:
        self.leave("end")
        self.windows.finish_with_last_step()
        self._fill()
        record = self.run.record
        if record["sparsity"]["verified"] is False:
            named = record["setting"]["sparsity"]
            raise UserError(
                f"setting: sparsity={named}, but the finished model does not have that pattern. Prune it, "
                "or name what it is."
            )
        self._write(scalars, None)
        if (judged := record["metric"]) is not None and judged["name"] not in self.run.metrics:
            given = ", ".join(self.run.metrics) or "nothing"
            print(f"mpx.Recorder: metric={judged['name']} was never given to metrics, which had {given}")
        self.run.say_status()

    def _break_off(self, scalars: Scalars, error: BaseException) -> None:
        """Record as much as is known."""
        self.first.abandon()
        self.windows.interrupt()
        try:
            self._fill()
        except Exception as failed:  # it must not hide the first error
            print(
                f"mpx.Recorder: {self.run.path} is not complete ({type(failed).__name__}: {failed})",
                file=sys.stderr,
            )
        self._write(scalars, error)

    def _write(self, scalars: Scalars, error: BaseException | None) -> None:
        scalars.close(self.run.record, self.steps, lost=error is not None)
        trouble = None if math.isfinite(scalars.newest.get(LOSS, 0.0)) else f"{LOSS} is infinite or NaN"
        status, line = self.run.judge(error, self.model, trouble)
        self.run.write(status, line)

    def _fill(self) -> None:
        record = self.run.record
        setting = record["setting"]
        record["config"]["data"]["batch_size"] = self.batch_size or None
        record["memory"] = peak_memory(self.device)
        record["precision"] = loop_precision_part(
            setting["precision"], self.first.audit, self.scaler, self.first_scale, self.steps
        )
        speed = speed_part(self.windows, self.first, self.exclusivity, self.output_dir, devices=self.world)
        if self.earlier:
            why = f"the first {self.earlier} steps were trained before"
            speed |= {"time_to_train_s": None, "time_to_train_s_reason": why}
        record["speed"] = speed
        measured = partial(loop_sparsity_part, setting["sparsity"], self.model)
        record["sparsity"] = (self.sparsity or measured)()


def _device_of(model: nn.Module | None) -> torch.device | str:
    weight = next(model.parameters(), None) if model is not None else None
    if weight is not None:
        return weight.device
    return "cuda" if torch.cuda.is_initialized() else "cpu"
