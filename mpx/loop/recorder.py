"""mpx.Recorder: a run of any training loop, recorded as mpx.train records its own."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.compiler_cache import keep_apart
from mpx.errors import UserError
from mpx.loop.ranks import Ranks
from mpx.loop.record import LoopRecord, Sparsity
from mpx.loop.scalars import number
from mpx.loop.steps import Shapes, Steps
from mpx.precision.modes import MODES
from mpx.processes import refuse_sharded
from mpx.runs import signals
from mpx.runs.own import OwnRun
from mpx.settings.recorder import check_metrics, check_recorder, check_samples, plain

BETWEEN = "steps of another mpx.Recorder ran between its own"
NO_FOLDER = "mpx.Recorder has no folder yet. Write: with mpx.Recorder(…) as recorder: …"

_turn: object = None  # `_mine` of the Recorder in this process that had the newest step


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
    observe: record the formats and FLOPs of the first step, which then runs uncompiled. Set it to False for torch.compile(fullgraph=True).

    The status is `completed` if the block ends, `interrupted` after Ctrl-C, SystemExit or SIGTERM, `diverged` for a loss, metric or trained
    weight that is infinite or NaN, also if the loop then raises an error, and `failed` otherwise. A block that fails before its
    first step and first value leaves nothing.

    Where several processes train one model, each makes a Recorder with the same setting. That of rank 0 writes the record and prints; the
    others count their samples.
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
        self.setting, self.model = setting, model
        self._run = OwnRun(study, setting, output_dir=output_dir, if_exists=if_exists, metric=metric, goal=metric_goal, label=label)
        self._ranks: Ranks | None = None  # from the `with` statement on
        self._device, self._scaler, self._output_dir = device, scaler, output_dir
        self._steps = Steps(warmup_steps, observe=observe)
        self._sparsity: Sparsity = None
        self._written: LoopRecord | None = None  # from the first step or value on, of rank 0
        self._begun = self.ended = False
        self._signals, self._mine = ExitStack(), object()

    def __enter__(self) -> "Recorder":
        if self._ranks is not None:
            raise UserError("mpx.Recorder records one run. Make another for the next `with` block.")
        ranks = Ranks(f"{self._run.setting_dir.parent.name}/{self._run.trial}/{self._run.seed}")
        if ranks.rank == 0:
            self._run.claim()
        self._ranks = ranks
        self._join()
        keep_apart(precision=self.setting["precision"])
        self._signals.enter_context(signals.termination_raises())
        self._dropped = self._signals.enter_context(signals.dropped())
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Recorder":
        """A block has one Recorder, also where a callback that has it is copied."""
        return self

    def _join(self) -> None:
        self._ranks.join(str(self._run.folder.path) if self._writes else "")

    @property
    def _writes(self) -> bool:
        return self._ranks is None or self._ranks.rank == 0

    @property
    def folder(self) -> Path:
        """The run's folder. Raises UserError outside a `with` block."""
        if self._ranks is None:
            raise UserError(NO_FOLDER)
        return self._run.folder.path if self._writes else Path(self._ranks.folder())

    @property
    def record(self) -> dict[str, Any]:
        """The content of result.json, as far as it is known."""
        return self._run.record

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return self._steps.number

    @contextmanager
    def step(self, samples: int) -> Iterator[None]:
        """One optimizer step. samples: of this process; 0 in a rank above 0 whose samples are those of another, as with tensor parallelism.

        The Recorder observes the first step's operations, and does not time the first `warmup_steps` steps. The time between two steps
        counts as waiting for data, except before `metrics` and in `pause`.
        """
        samples = check_samples(samples, least=1 if self._writes else 0)
        if self._steps.inside:
            raise UserError("step within a step: one is an optimizer step. Put it around all batches whose gradients that step takes.")
        self.begin_step()
        try:
            yield
        except BaseException:
            self._steps.broke()
            raise
        self.end_step(samples)

    def begin_step(self) -> None:
        """`step` in two halves, for callbacks."""
        self._begin()
        if self._dropped:
            raise self._dropped.pop()
        if self._steps.unfinished:
            self._steps.drop()
            self._leave("other")
        self._take_turn()
        self._steps.begin()

    def _take_turn(self) -> None:
        """Another Recorder's steps between two of this one's are in its times, and those of both would be alike."""
        global _turn
        if self._written is not None and self._written.has_steps and _turn is not self._mine and self._written.refute(BETWEEN):
            print(f"mpx.Recorder: {BETWEEN}, so that its speed does not count. Train one after the other.")
        _turn = self._mine

    def end_step(self, samples: int, shapes: Mapping[Shapes, Fraction] | None = None) -> None:
        """samples: those that the step has had in this process. shapes: theirs, where they are known, and how often for each sample the
        model had such."""
        if self._steps.end(samples, shapes):
            self._warn()

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Scalars of the current step, as `train/loss`, for TensorBoard and curves.csv. Tensors on a GPU are read later."""
        check_metrics(dict.fromkeys(values, 0.0))
        values = {name: number(name, value) for name, value in values.items()}
        self._begin()
        if self._written is not None:
            self._written.log(values, self.steps + self._steps.inside)

    def metrics(self, values: Mapping[str, float | Tensor]) -> None:
        """Metrics for result.json, such as `test/accuracy` (a fraction) and `val/loss`. A later value replaces an earlier one.

        The time since the last step counts as evaluation, not as training.
        """
        values = {name: float(number(name, value)) for name, value in values.items()}
        check_metrics(values)
        self._begin()
        self._leave("validation")
        if self._written is not None:
            self._written.metrics(values)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Between two steps: the time of the block, such as an evaluation or a checkpoint, does not count as training."""
        if self._begun:
            self._leave("other")
        yield

    def pruned(self, sparsity: Sparsity = None) -> None:
        """The model has just been pruned: the steps warm up again.

        sparsity: called at the end, returns the sparsity part of result.json; None: it is measured from the model.
        """
        self._sparsity = sparsity
        if self._begun:
            self._steps.windows.warm_up_again()

    def scaled(self, scaler: Any) -> None:
        """Before the first step: the loop has this torch.amp.GradScaler, as `scaler=` says it where it exists earlier."""
        self._scaler = scaler
        if self._written is not None:
            self._written.scaled(scaler)

    def start_over(self) -> None:
        """The loop begins again, with other batches: the steps so far only count for the time to train."""
        if self._begun:
            self._steps.start_over()

    def continued(self, steps: int) -> None:
        """Before the first step: the loop goes on from a checkpoint, which was saved after `steps` steps. Steps count on from there.

        The time to train is then unknown, as that of the steps before is.
        """
        self._begin()
        self._steps.number = steps
        if self._written is not None:
            self._written.continued(steps)

    def _begin(self) -> None:
        """With the first step or value, the run begins: its folder is written."""
        if self.ended:
            raise UserError("mpx.Recorder: the `with` block has ended, and the record is written. Put this into the block.")
        if self._begun:
            return
        if self._ranks is None:
            raise UserError(NO_FOLDER)
        self._ranks.check()
        self._join()
        if self._writes:
            device = self._device if self._device is not None else _device_of(self.model)
            self._written = LoopRecord(
                self._run, self._ranks, self._steps, device=device, model=self.model, scaler=self._scaler, output_dir=str(self._output_dir)
            )
        else:
            self._steps.start(torch.device("cpu"), observe=False)  # which counts the timed steps without a mark on the GPU
        self._begun = True

    def _leave(self, then: str) -> None:
        if self._written is not None:
            self._written.leave(then)
        else:
            self._steps.windows.leave(then)

    def _warn(self) -> None:
        """Say it where the observed step contradicts the setting."""
        if (mode := MODES.get(self.setting["precision"])) is None:
            return
        for kind, share in self._steps.audit.shares(mode).items():
            if share < 1:
                found = ", ".join(sorted({row.fmt for row in self._steps.audit.rows() if row.kind == kind}))
                print(f"mpx.Recorder: precision={mode.name} means {kind} in {mode.formats[kind]}, but the first step ran {found}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                self._begin()
            if not self._begun:
                return
            if self._written is None:
                self._tell_samples(error)
            elif error is None:
                self._written.conclude(self._sparsity)
            else:
                # torchrun's signal comes once another process has ended, which has led to this error, too
                with signals.held(), signals.deaf_to_children():
                    self._written.break_off(self._dropped[0] if self._dropped else error, self._sparsity)
        finally:
            self.ended = True
            if self._writes:
                self._run.end()
            self._signals.close()

    def _tell_samples(self, error: BaseException | None) -> None:
        """The end in a rank above 0."""
        windows = self._steps.windows
        windows.leave("end")
        self._ranks.leave(windows.measured_steps, windows.samples)


def _device_of(model: nn.Module | None) -> torch.device | str:
    weight = next(model.parameters(), None) if model is not None else None
    if weight is not None:
        return weight.device
    return "cuda" if torch.cuda.is_initialized() else "cpu"
