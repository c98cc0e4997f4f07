"""mpx.Recorder: a run of any training loop, recorded as mpx.train records its own."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.compiler_cache import keep_apart
from mpx.errors import UserError
from mpx.measure.batches import Shapes
from mpx.measure.environment import environment, host_id, host_of_rank_0, joined
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import model_flops
from mpx.measure.memory import peak_memory, reset_host_peak, reset_peak
from mpx.measure.windows import Windows
from mpx.precision.audit import Audit
from mpx.precision.modes import MODES, Mode
from mpx.precision.switches import multiplied_now
from mpx.processes import refuse_sharded
from mpx.record.parts import loop_precision_part, loop_sparsity_part, speed_part
from mpx.record.ranks import WAIT_S, Ranks
from mpx.record.run import RunRecord
from mpx.record.scalars import Scalars, number
from mpx.runs import signals
from mpx.settings.recorder import check_metrics, check_recorder, check_samples, plain

NO_FOLDER = "mpx.Recorder has no folder yet. Write: with mpx.Recorder(…) as recorder: …"
LOSS = "train/loss"
AT_ONCE_S = 0.1  # 0 would mean for ever
RATES = ("train_samples_per_s", "model_tflops_per_s", "mfu")
OTHERS_UNKNOWN = (
    "the samples of other processes are unknown: each needs an mpx.Recorder of this setting, whose block ends after as many timed steps"
)
Sparsity = Callable[[], dict[str, Any]] | None  # returns the sparsity part of result.json; None: it is measured from the model

_open: "Recorder | None" = None  # the one in whose block this process is


@dataclass
class Measured:
    """What rank 0 measures and writes from the first step or value on."""

    device: torch.device
    exclusivity: ExclusivityChecks
    first: FirstStep
    scalars: Scalars


class Recorder:
    """Records the loop in its `with` block as one run, which `mpx.compare` judges. It writes result.json, curves.csv and TensorBoard's
    events into `<output_dir>/<study>/<setting>/seed<N>/`.

        setting = {"model": "net", "data": "set", "precision": "amp", "sparsity": "dense", "seed": 0}
        with mpx.Recorder(study="mine", setting=setting) as recorder:
            for x, y in batches:
                with recorder.step(len(x)):
                    train(x, y)
            recorder.metrics({"test/accuracy": accuracy()})

    setting: what distinguishes this run: the five keys above, and every other one that changes the result, as `optimizer.lr`.
    study: name of the comparison.
    model: its sparsity is measured at the end, and its device is timed.
    device: the device that is timed, without a model.
    scaler: a torch.amp.GradScaler, whose scale is recorded.
    metric: by which runs are compared, as val/dice; None: accuracy or perplexity.
    metric_goal: max if the metric should rise, min if it should fall.
    label: the setting's name in tables and plots.
    if_exists: new makes `seed0-2` beside a finished `seed0`; overwrite replaces it; error refuses.
    warmup_steps: first steps that the throughput leaves out.
    observe: record the formats and FLOPs of the first step, which then runs uncompiled. Set it to False for
        torch.compile(fullgraph=True).

    The status is `completed` if the block ends, `interrupted` after Ctrl-C, SystemExit or SIGTERM, `diverged` for a loss, metric or
    trained weight that is infinite or NaN, also if the loop then raises an error, and `failed` otherwise. A block that fails before its
    first step and first value leaves nothing.

    Where several processes train one model, each makes a Recorder with the same setting. That of rank 0 writes the record and prints;
    the others count their samples.
    Raises UserError for a value that a record cannot hold, and for a finished model without the pattern that the setting names.
    """

    def __init__(
        self,
        *,
        setting: Mapping[str, Any],
        study: str = "default",
        model: nn.Module | None = None,
        device: torch.device | str | None = None,
        scaler: Any = None,
        metric: str | None = None,
        metric_goal: str = "max",
        label: str | None = None,
        output_dir: str | Path = "outputs",
        if_exists: str = "new",
        warmup_steps: int = 10,
        observe: bool = True,
    ):
        given = {"study": study, "label": label, "output_dir": str(output_dir), "if_exists": if_exists}
        given |= {"warmup_steps": warmup_steps, "observe": observe, "metric": metric, "metric_goal": metric_goal}
        setting = plain(setting)
        check_recorder(given, setting)
        refuse_sharded(model.parameters() if model is not None else ())
        self.setting, self.model, self.scaler = setting, model, scaler
        self.steps = 0  # so far, also those before the checkpoint from which the loop goes on
        self.windows = Windows(warmup_steps)
        self._run = RunRecord(
            study, setting, output_dir=output_dir, if_exists=if_exists, metric=metric, goal=metric_goal, label=label
        )
        self._device, self._output_dir, self._observe = device, str(output_dir), observe
        self._first_scale: float | None = None
        self._earlier = 0  # steps before the checkpoint from which the loop goes on
        self._batch_size = 0  # samples of the largest step: a last one may be smaller
        self._in_step = self._dropped = False  # within a step; the newest step raised an error
        self._sparsity: Sparsity = None
        self._ranks: Ranks | None = None  # from the first step or value on, with which the run begins
        self._measured: Measured | None = None  # then, in rank 0
        self._block = ExitStack()
        self.ended = False

    def __enter__(self) -> "Recorder":
        global _open
        if self.ended or _open is self:
            raise UserError("mpx.Recorder records one run. Make another for the next `with` block.")
        if _open is not None:
            raise UserError(
                "mpx.Recorder: the block of another one has not ended, so that each would time the steps of both. "
                "Train one after the other."
            )
        keep_apart(precision=self.setting["precision"])
        self._block.enter_context(signals.termination_raises())
        _open = self
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Recorder":
        """A block has one Recorder, also where a callback that has it is copied."""
        return self

    @property
    def folder(self) -> Path:
        """The run's folder, in rank 0. Raises UserError outside a `with` block."""
        if not self.ended:
            self._begin()
        if self._run.folder is None:
            raise UserError("mpx.Recorder: only that of rank 0 has a folder.")
        return self._run.path

    @property
    def record(self) -> dict[str, Any]:
        """The content of result.json, as far as it is known."""
        return self._run.record

    @contextmanager
    def step(self, samples: int) -> Iterator[None]:
        """One optimizer step. samples: of this process.

        The Recorder observes the first step's operations, and does not time the first `warmup_steps` steps. The time between two steps
        counts as waiting for data, except before `metrics` and in `pause`.
        """
        samples = check_samples(samples)
        self.begin_step()
        try:
            yield
        except BaseException:
            self._drop_step()
            raise
        self.end_step(samples)

    def begin_step(self) -> None:
        """`step` in two halves, for callbacks."""
        self._begin()
        if self._in_step:
            raise UserError(
                "step within a step: one is an optimizer step. Put it around all batches whose gradients that step takes."
            )
        if self._dropped:
            self._dropped = False
            self._leave("other")
        if self._first_scale is None and self.scaler is not None:
            self._first_scale = self.scaler.get_scale()
        if self.windows.timing:
            self.windows.waited()
        else:
            self.windows.enter("warmup")  # until a window opens, which it does only for warm steps
            self.windows.open_window()
        self._in_step = True
        if self._measured is not None and self._observe:
            self._measured.first.begin()

    def end_step(self, samples: int, shapes: Shapes | None = frozenset()) -> None:
        """samples: those that the step has had in this process. shapes: of each of them; None: they differ."""
        self._in_step = False
        self.steps += 1
        self._batch_size = max(self._batch_size, samples)
        if self._measured is not None and self._observe:
            self._measured.first.end(samples, shapes)
        self.windows.stepped(samples)

    def _drop_step(self) -> None:
        """The step raised an error, as when a batch does not fit and the loop goes on: neither its time nor its operations count."""
        self._in_step, self._dropped = False, True
        if self._measured is not None:
            self._measured.first.abandon()
            if not self._measured.first.samples:
                self._measured.first = self._watch(self._measured.device)

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Scalars of the current step, as `train/loss`, for TensorBoard and curves.csv. Tensors on a GPU are read later."""
        check_metrics(dict.fromkeys(values, 0.0))
        numbers = {name: number(name, value) for name, value in values.items()}
        self._begin()
        if self._measured is not None:
            self._measured.scalars.add(numbers, self.steps + self._in_step)

    def metrics(self, values: Mapping[str, float | Tensor]) -> None:
        """Metrics for result.json, such as `test/accuracy` (a fraction) and `val/loss`. A later value replaces an earlier one.

        The time since the last step counts as evaluation, not as training.
        """
        numbers = {name: float(number(name, value)) for name, value in values.items()}
        check_metrics(numbers)
        self._begin()
        self._leave("validation")
        self._run.add_metrics(numbers, self.steps)
        if self._measured is not None:
            curves = {name: value for name, value in numbers.items() if not name.startswith("test/")}
            self._measured.scalars.add(curves, self.steps)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Between two steps: the time of the block, such as an evaluation or a checkpoint, does not count as training."""
        if self._ranks is not None:
            self._leave("other")
        yield

    def pruned(self, sparsity: Sparsity = None) -> None:
        """The model has just been pruned: the steps warm up again.

        sparsity: called at the end, returns the sparsity part of result.json; None: it is measured from the model.
        """
        self._sparsity = sparsity
        if self._ranks is not None:
            self.windows.warm_up_again()

    def continued(self, steps: int) -> None:
        """Before the first step: the loop goes on from a checkpoint, which was saved after `steps` steps. Steps count on from there.

        The time to train is then unknown, as that of the steps before is.
        """
        self._begin()
        self.steps = self._earlier = steps
        if self._measured is not None:
            self.record["environment"]["resumed_from_steps"] = [steps]

    def _begin(self) -> Ranks:
        """With the first step or value, the run begins: its folder is written."""
        if self.ended:
            raise UserError("mpx.Recorder: the `with` block has ended, and the record is written. Put this into the block.")
        if _open is not self:
            raise UserError(NO_FOLDER)
        if self._ranks is None:
            known = Ranks(f"{self._run.setting_dir.parent.name}/{self._run.trial}/{self._run.seed}")
            if known.rank == 0:
                self._measured = self._open_folder(known.world)
            self.windows.begin(torch.device("cpu") if self._measured is None else self._measured.device)
            self._ranks = known
        return self._ranks

    def _open_folder(self, world: int) -> Measured:
        device = torch.device(_device_of(self.model) if self._device is None else self._device)
        self.record["config"]["trainer"] = {"devices": world}
        used = torch.cuda.current_device() if device.index is None and device.type == "cuda" else device.index
        here = environment([used] if device.type == "cuda" else "auto")
        self._run.open(here | {"host": host_of_rank_0(here["host"])})
        measured = Measured(device, ExclusivityChecks(device), self._watch(device), Scalars(self._run))
        measured.exclusivity.look()
        reset_host_peak()
        reset_peak(device)
        return measured

    def _watch(self, device: torch.device) -> FirstStep:
        """FP32 operands multiply as PyTorch's switches say at this moment."""
        audit = Audit(Mode("observed", **multiplied_now(device)), emulate=False, flops_of=model_flops)
        first = FirstStep(audit, then=partial(self._after_first, device))
        first.unlike = None if self._observe else "no step was observed (observe=)"
        return first

    def _after_first(self, device: torch.device, audit: Audit) -> None:
        """Say it where the first step contradicts the setting."""
        reset_peak(device)  # an uncompiled step may need more memory
        if (mode := MODES.get(self.setting["precision"])) is None:
            return
        for kind, share in audit.shares(mode).items():
            if share < 1:
                formats = ", ".join(sorted({row.fmt for row in audit.rows() if row.kind == kind}))
                print(f"mpx.Recorder: precision={mode.name} means {kind} in {mode.formats[kind]}, but the first step ran {formats}")

    def _leave(self, then: str) -> None:
        """The window ends with the last step; the device is waited for."""
        self.windows.leave(then)
        if self._measured is not None:
            self._measured.scalars.write()
            self._measured.exclusivity.look()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        global _open
        try:
            if error is None:
                self._begin()
            if self._ranks is not None:
                self._end(self._ranks, error)
        finally:
            _open, self.ended = None, True
            self._run.close()
            self._block.close()

    def _end(self, known: Ranks, error: BaseException | None) -> None:
        if self._measured is None:
            self.windows.leave("end")
            known.tell(self.windows.measured_steps, self.windows.samples)
            return
        try:
            if error is None:
                self._complete(self._measured, known)
        except BaseException as failed:
            self._break_off(self._measured, known, failed)
            raise
        if error is not None:
            with signals.held():  # torchrun's signal comes once another process has ended, which has led to this error, too
                self._break_off(self._measured, known, error)

    def _complete(self, measured: Measured, known: Ranks) -> None:
        """Raises UserError for a finished model without the pattern that the setting names."""
        self._leave("end")
        self.windows.finish_with_last_step()
        unknown = self._fill(measured, known, WAIT_S)
        if self.record["sparsity"]["verified"] is False:
            named = self.setting["sparsity"]
            raise UserError(
                f"setting: sparsity={named}, but the finished model does not have that pattern. Prune it, or name what it is."
            )
        measured.scalars.close(self.record, self.steps)
        self._write(measured, None)
        if unknown is not None:
            print(f"mpx.Recorder: {unknown}")
        if (judged := self.record["metric"]) is not None and judged["name"] not in self._run.metrics:
            given = ", ".join(self._run.metrics) or "nothing"
            print(f"mpx.Recorder: metric={judged['name']} was never given to metrics, which had {given}")
        self._run.say_status()

    def _break_off(self, measured: Measured, known: Ranks, error: BaseException) -> None:
        """Record as much as is known."""
        measured.first.abandon()
        self.windows.interrupt()
        for part in (lambda: self._fill(measured, known, AT_ONCE_S), lambda: measured.scalars.close(self.record, self.steps)):
            try:
                part()
            except Exception as failed:  # it must not hide the first error
                print(f"mpx.Recorder: {self._run.path} is not complete ({type(failed).__name__}: {failed})", file=sys.stderr)
        self._write(measured, error)

    def _write(self, measured: Measured, error: BaseException | None) -> None:
        loss = measured.scalars.newest.get(LOSS, 0.0)
        trouble = None if math.isfinite(loss) else f"{LOSS} is infinite or NaN"
        status, line = self._run.judge(error, self.model, trouble)
        self._run.write(status, line, self.steps)

    def _fill(self, measured: Measured, known: Ranks, wait_s: float) -> str | None:
        """The parts of result.json that are known after training, however it ended. wait_s: for other processes, at most.

        Returns why the samples of other processes are unknown, if they are.
        """
        record, windows, first = self.record, self.windows, measured.first
        others, unknown = known.others(wait_s), None
        if others is None or any(rank.steps != windows.measured_steps for rank in others):
            others, unknown = [], OTHERS_UNKNOWN
        else:
            record["environment"]["host"] = joined([host_id(), *(rank.host for rank in others)])
        record["config"]["data"]["batch_size"] = self._batch_size or None
        record["memory"] = peak_memory(measured.device)
        named = self.setting["precision"]
        record["precision"] = loop_precision_part(named, first.audit, self.scaler, self._first_scale, self.steps)
        samples = sum(rank.samples for rank in others)
        speed = speed_part(windows, first, measured.exclusivity, self._output_dir, devices=known.world, others=samples)
        if unknown is not None:
            speed |= dict.fromkeys(RATES) | dict.fromkeys((f"{name}_reason" for name in RATES), unknown)
        if self._earlier:
            why = f"the first {self._earlier} steps were trained before"
            speed |= {"time_to_train_s": None, "time_to_train_s_reason": why}
        record["speed"], named = speed, self.setting["sparsity"]
        record["sparsity"] = self._sparsity() if self._sparsity is not None else loop_sparsity_part(named, self.model)
        return unknown


def _device_of(model: nn.Module | None) -> torch.device | str:
    weight = next(model.parameters(), None) if model is not None else None
    if weight is not None:
        return weight.device
    return "cuda" if torch.cuda.is_initialized() else "cpu"
