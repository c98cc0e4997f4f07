"""The callback that writes a run's record: `pl.Trainer(callbacks=[mpx.Record(study="mine")])`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from mpx.errors import UserError
from mpx.measure.batches import samples_in
from mpx.measure.environment import environment, host_id, host_of_all
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.first_step import FirstStep, WatchFirstStep
from mpx.measure.memory import peak_memory, reset_host_peak, reset_peak
from mpx.measure.throughput import Throughput
from mpx.precision.numerics import Numerics
from mpx.precision.plugin import ModePrecision, mode_of
from mpx.precision.switches import keep_apart
from mpx.private.lightning import combine_what_is_logged, find
from mpx.record.parts import audit_of, precision_part, sparsity_part, speed_part
from mpx.record.run import RunRecord
from mpx.runs.result import SPEED, line_of, metric_name, not_logged, stage_of
from mpx.settings.arguments import check_record, plain
from mpx.sparsity.callback import Pruning
from mpx.system.processes import refuse_sharded

NO_THROUGHPUT = dict.fromkeys(SPEED) | {"measured_steps": 0, "reason": "no mpx.Throughput in the Trainer"}


class Newest(dict[str, float]):
    """The newest value of everything that the module logs, by its name in the record. After `forget`, as the
    model has just been pruned, a value counts only once the module logs it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, torch.Tensor] = {}  # which the Trainer keeps until the module logs them again

    def take(self, trainer: pl.Trainer) -> None:
        fresh = {
            name: value
            for name, value in trainer.callback_metrics.items()
            if value is not self._old.get(name)
        }
        self |= {metric_name(name): float(value) for name, value in fresh.items()}

    @property
    def names(self) -> set[str]:
        """The names of everything that the module has logged, also before `forget`."""
        return {*self, *map(metric_name, self._old)}

    def forget(self, trainer: pl.Trainer) -> None:
        self._old = dict(trainer.callback_metrics)
        self.clear()


@dataclass(frozen=True)
class Fit:
    """What a Record has of one `trainer.fit`."""

    run: RunRecord
    newest: Newest  # the run's metrics
    watch: WatchFirstStep
    exclusivity: ExclusivityChecks


class Record(Callback):
    """Writes result.json when fitting ends, however it ends, and again after a test:
    `pl.Trainer(callbacks=[mpx.Record(study="mine")])`.

    result.json holds the values that the module logs in validation and test, and what mpx.Throughput,
    mpx.Numerics, mpx.Sparsity and the precision have measured. `python -m mpx.compare study=<study>` compares
    all runs of a study.

    study: name of the comparison; the folder is <output_dir>/<study>/<setting>/seed<N>/.
    model, data: names in tables; None: the classes of module and datamodule.
    seed: None: that of pl.seed_everything, otherwise 0.
    metric: a value that the module logs, such as "val/dice", by which runs are compared; None: accuracy or
    perplexity. metric_goal: max if the metric should rise, min if it should fall. changes: settings that
    distinguish this run from others, such as {"lr": 0.1}. if_exists: new (seed0-2 beside an earlier run),
    overwrite or error; a training that continues a checkpoint is a run of its own, too.

    On several devices, what the module logs for an epoch is combined over all processes, as with
    sync_dist=True. A metric of the validation that the module does not log is refused at the first one, which
    Lightning runs before it trains. A run whose newest values or trained weights are not all finite counts as
    diverged. The first step is slow, because its operations are recorded.
    Raises UserError for a value that a record cannot hold, and, when training starts, for a folder that
    cannot be used.
    """

    def __init__(
        self,
        study: str = "default",
        *,
        model: str | None = None,
        data: str | None = None,
        seed: int | None = None,
        metric: str | None = None,
        metric_goal: str = "max",
        changes: Mapping[str, Any] | None = None,
        output_dir: str | Path = "outputs",
        if_exists: str = "new",
    ):
        given = {"study": study, "metric": metric, "metric_goal": metric_goal, "output_dir": str(output_dir)}
        given |= {"if_exists": if_exists}
        seed, changes = plain({"seed": seed})["seed"], plain(changes)
        check_record(given, {"model": model, "data": data, "seed": seed}, changes)
        self.study, self.model, self.data, self.seed, self.changes = (
            study,
            model,
            data,
            seed,
            dict(changes or {}),
        )
        self.metric, self.goal, self.output_dir, self.if_exists = metric, metric_goal, output_dir, if_exists
        self._stage = None if metric is None else stage_of(metric)
        self._fit: Fit | None = None  # the newest

    @property
    def folder(self) -> Path | None:
        """The run's, from the start of training, in the process that writes it."""
        return None if self._fit is None or self._fit.run.folder is None else self._fit.run.path

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size > 1:
            combine_what_is_logged(trainer)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        refuse_sharded(pl_module.parameters())
        device, plugin, pruning = (
            trainer.strategy.root_device,
            trainer.precision_plugin,
            find(trainer, Pruning),
        )
        throughput, datamodule = find(trainer, Throughput), vars(trainer)["datamodule"]
        setting = {
            "model": self.model or type(pl_module).__name__,
            "data": self.data or ("data" if datamodule is None else type(datamodule).__name__),
            "precision": mode_of(plugin).name,
            "sparsity": "dense" if pruning is None else pruning.pattern,
            "seed": int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.seed is None else self.seed,
        }
        setting |= getattr(plugin, "changes", {}) | getattr(pruning, "changes", {}) | self.changes
        newest = Newest()
        run = RunRecord(
            self.study, setting, output_dir=self.output_dir, if_exists=self.if_exists, metric=self.metric,
            goal=self.goal,
            metrics=newest,
        )  # fmt: skip
        samples_of = samples_in if throughput is None else throughput.samples_of
        self._fit = Fit(
            run, newest, WatchFirstStep(FirstStep(audit_of(plugin)), samples_of), ExclusivityChecks(device)
        )
        reset_host_peak()
        reset_peak(device)
        keep_apart(precision=setting["precision"])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        host = host_of_all(host_id())
        if trainer.is_global_zero and self._fit is not None:
            here, ckpt_path = environment(trainer.device_ids) | {"host": host}, trainer.ckpt_path
            self._fit.run.open(
                here, ckpt_path=None if ckpt_path is None else str(ckpt_path), steps=trainer.global_step
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None:
            self._fit.watch.on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None:
            self._fit.watch.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._fit is None:
            return
        # Lightning shows no metrics of several loaders
        hidden = trainer.sanity_checking and len(trainer.num_sanity_val_batches) > 1
        logged = map(metric_name, trainer.callback_metrics)
        if self._stage == "val" and not hidden and metric_name(str(self.metric)) not in logged:
            raise not_logged(str(self.metric), trainer)
        if not trainer.sanity_checking:
            self._fit.newest.take(trainer)
            self._fit.exclusivity.look()

    def forget_metrics(self, trainer: pl.Trainer) -> None:
        """The model has just been pruned: the values so far are those of another one."""
        if self._fit is not None:
            self._fit.newest.forget(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_stage(trainer, expected=self._stage not in (None, "test"), says_completed=True)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_stage(trainer, expected=self._stage == "test", says_completed=False)

    def _end_stage(self, trainer: pl.Trainer, *, expected: bool, says_completed: bool) -> None:
        """expected: whether the module must have logged `metric` by now."""
        if self._fit is None or self.folder is None:  # training has not begun, or another process writes
            return
        self._fit.newest.take(trainer)
        self._write(trainer, self._fit, None)
        if says_completed or self._fit.run.record["status"] != "completed":
            self._fit.run.say_status()
        if expected and metric_name(str(self.metric)) not in self._fit.newest:
            logged = ", ".join(sorted(self._fit.newest))
            print(f"mpx.Record: metric={self.metric}: the module logs no such value. It logs {logged}")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        if self._fit is not None:
            self._fit.watch.first.abandon()
            if self.folder is not None:
                self._write(trainer, self._fit, exception)

    def _write(self, trainer: pl.Trainer, fit: Fit, exception: BaseException | None) -> None:
        plugin, first, device, run = (
            trainer.precision_plugin,
            fit.watch.first,
            fit.exclusivity.device,
            fit.run,
        )
        throughput, pruning, record = find(trainer, Throughput), find(trainer, Pruning), run.record
        record["config"]["data"]["batch_size"] = first.samples or None
        devices = {"devices": trainer.num_devices, "num_nodes": trainer.num_nodes}
        record["config"]["trainer"] = devices | {
            "max_epochs": trainer.max_epochs,
            "max_steps": trainer.max_steps,
        }
        record["speed"] = NO_THROUGHPUT
        if throughput is not None:
            record["speed"] = speed_part(
                throughput, first, fit.exclusivity, self.output_dir, devices=trainer.world_size
            )
        record["memory"] = peak_memory(device)
        record["precision"] = precision_part(
            plugin, first.audit, find(trainer, Numerics), trainer.global_step
        )
        record["sparsity"] = sparsity_part(pruning, mode_of(plugin).narrowest, device)
        run.write(*self._ending(trainer, fit, exception))
        run.close()

    def _ending(
        self, trainer: pl.Trainer, fit: Fit, exception: BaseException | None
    ) -> tuple[str, str | None]:
        """The status, and one line about what is wrong."""
        # SIGTERM ends a loader's worker, too, which is an error here
        if exception is not None and trainer.received_sigterm:
            return "interrupted", line_of(exception)
        plugin, trouble = trainer.precision_plugin, None
        if exception is None:
            if (unpruned := _unpruned(trainer)) is not None:
                return "failed", unpruned
            trouble = plugin.trouble() or plugin.idle() if isinstance(plugin, ModePrecision) else None
        return fit.run.judge(exception, trainer.lightning_module, trouble)


def _unpruned(trainer: pl.Trainer) -> str | None:
    """Why the trained model does not have its pattern; None if it has, or has none."""
    pruning = find(trainer, Pruning)
    if pruning is None or not pruning.masks.weights:
        return None
    try:
        pruning.assert_pattern(trainer, "the training was over")
    except UserError as error:
        if trainer.testing:
            return (
                f"the tested weights are not {pruning.masks.pattern.name}. Test the newest, or a "
                "checkpoint from after the pruning."
            )
        return str(error)
    return pruning.unfinished(trainer)
