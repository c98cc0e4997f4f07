"""mpx.Recorder: a run of any training loop, recorded as mpx.train records its own."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpx.errors import UserError
from mpx.measure.batches import Shapes
from mpx.precision.switches import keep_apart
from mpx.record.loop import Loop, Sparsity
from mpx.record.run import RunRecord, number
from mpx.runs import signals
from mpx.settings.arguments import check_metrics, check_recorder, check_samples, plain
from mpx.system.processes import refuse_sharded

_open: "Recorder | None" = None  # the one in whose block this process is


class Recorder:
    """Records the loop in its `with` block as one run, which `mpx.compare` judges. It writes result.json,
    curves.csv and TensorBoard's events into `<output_dir>/<study>/<setting>/seed<N>/`.

        setting = {"model": "net", "data": "set", "precision": "amp", "sparsity": "dense", "seed": 0}
        with mpx.Recorder(study="mine", setting=setting) as recorder:
            for x, y in batches:
                with recorder.step(len(x)):
                    train(x, y)
            recorder.metrics({"test/accuracy": accuracy()})

    setting: what distinguishes this run: the five keys above, and every other one that changes the result, as
    `optimizer.lr`. study: name of the comparison.
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

    The status is `completed` if the block ends, `interrupted` after Ctrl-C, SystemExit or SIGTERM, `diverged`
    for a loss, metric or trained weight that is infinite or NaN, also if the loop then raises an error, and
    `failed` otherwise. A block that fails before its first step and first value leaves nothing.

    Where several processes train one model, each makes a Recorder with the same setting. That of rank 0
    writes the record and prints. Each process must have as many samples in a step as rank 0.
    Raises UserError for a value that a record cannot hold, and for a finished model without the pattern that
    the setting names.
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
        given |= {"metric": metric, "metric_goal": metric_goal}
        setting = plain(setting)
        check_recorder(given | {"warmup_steps": warmup_steps, "observe": observe}, setting)
        refuse_sharded(model.parameters() if model is not None else ())
        self._run = RunRecord(
            study,
            setting,
            output_dir=output_dir,
            if_exists=if_exists,
            metric=metric,
            goal=metric_goal,
            label=label,
        )
        self._loop: Loop | None = None  # from the first step or value on
        self._begin_loop = partial(
            Loop, self._run, warmup_steps=warmup_steps, device=device, model=model, scaler=scaler,
            observe=observe,
            output_dir=str(output_dir),
        )  # fmt: skip
        self._signals, self._stop = ExitStack(), signals.Stop()
        self.ended = False

    def __enter__(self) -> "Recorder":
        global _open
        if self.ended or _open is self:
            raise UserError("mpx.Recorder records one run. Make another for the next `with` block.")
        if _open is not None:
            raise UserError(
                "mpx.Recorder: the block of another one has not ended, so that each would time the steps "
                "of both. "
                "Train one after the other."
            )
        keep_apart(precision=self.record["setting"]["precision"])
        self._stop = self._signals.enter_context(signals.termination_raises())
        _open = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        global _open
        try:
            if error is None:
                self._begin()
            if self._loop is not None:
                self._loop.end(error)
        finally:
            _open, self.ended = None, True
            self._run.close()
            self._signals.close()

    @property
    def folder(self) -> Path:
        """The run's folder, in rank 0, which begins with this if no step has. Raises UserError before the
        `with` block, and in other ranks.
        """
        if not self.ended:
            self._begin()
        return self._run.path

    @property
    def record(self) -> dict[str, Any]:
        """The content of result.json, as far as it is known."""
        return self._run.record

    @property
    def steps(self) -> int:
        """The number of steps so far, also of those before the checkpoint from which the loop goes on."""
        return 0 if self._loop is None else self._loop.steps

    @contextmanager
    def step(self, samples: int) -> Iterator[None]:
        """One optimizer step. samples: of this process.

        The Recorder observes the first step's operations, and does not time the first `warmup_steps` steps.
        The time between two steps counts as waiting for data, except before `metrics` and in `pause`.
        """
        samples, loop = check_samples(samples), self._begin()
        self.begin_step()
        try:
            yield
        except BaseException:
            loop.drop_step()
            raise
        loop.end_step(samples, frozenset())

    def begin_step(self) -> None:
        """`step` in two halves, for callbacks."""
        loop = self._begin()
        # Python drops an exception that is raised where it frees an object or forks
        if self._stop.first is not None:
            raise self._stop.end()
        loop.begin_step()

    def end_step(self, samples: int, shapes: Shapes | None = frozenset()) -> None:
        """samples: those that the step has had in this process. shapes: of each of them; None: they
        differ.
        """
        self._begin().end_step(samples, shapes)

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Scalars of the current step, as `train/loss`, for TensorBoard and curves.csv. Tensors on a GPU are
        read later.
        """
        check_metrics(dict.fromkeys(values, 0.0))  # the names alone: a value may be on a GPU
        numbers = {name: number(name, value) for name, value in values.items()}
        self._begin().log(numbers)

    def metrics(self, values: Mapping[str, float | Tensor]) -> None:
        """Metrics for result.json, such as `test/accuracy` (a fraction) and `val/loss`. A later value
        replaces an earlier one.

        The time since the last step counts as evaluation, not as training.
        """
        numbers = {name: float(number(name, value)) for name, value in values.items()}
        check_metrics(numbers)
        self._begin().metrics(numbers)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Between two steps: the time of the block, such as an evaluation or a checkpoint, does not count as
        training.
        """
        self._begin().leave("other")
        yield

    def pruned(self, sparsity: Sparsity = None) -> None:
        """The model has just been pruned: the steps warm up again.

        sparsity: called at the end, returns the sparsity part of result.json; None: it is measured from the
        model.
        """
        self._begin().pruned(sparsity)

    def scaled(self, scaler: Any) -> None:
        """Before the first step: the loop has this torch.amp.GradScaler, as `scaler=` says it where it exists
        earlier.
        """
        self._begin().scaler = scaler

    def continued(self, steps: int) -> None:
        """Before the first step: the loop goes on from a checkpoint, which was saved after `steps` steps.
        Steps count on from there.

        The time to train is then unknown, as that of the steps before is.
        """
        self._begin().continued(steps)

    def _begin(self) -> Loop:
        """With the first step or value, the run begins: its folder is written."""
        if _open is not self:
            raise UserError(
                "mpx.Recorder records only within its block. Write: with mpx.Recorder(…) as recorder: …"
            )
        if self._loop is None:
            self._loop = self._begin_loop()
        return self._loop
