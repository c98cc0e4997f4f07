"""The callback that writes a run's record: `pl.Trainer(callbacks=[mpx.Record(study="mine")])`."""

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.compiler_cache import keep_apart
from mpx.errors import Diverged, UserError
from mpx.library.parts import Newest, find, metrics_of, observe_first_step, parts_of, refuse_missing
from mpx.measure.batches import samples_in, usual_size
from mpx.measure.environment import environment, host_id, host_of_all
from mpx.measure.exclusive import ExclusivityChecks
from mpx.measure.memory import reset_host_peak, reset_peak
from mpx.measure.throughput import Throughput
from mpx.precision.plugin import ModePrecision
from mpx.precision.plugin_mode import mode_of
from mpx.private.lightning import combine_what_is_logged
from mpx.processes import not_finite
from mpx.record.result import line_of, metric_name, note_validation, stage_of, words_of_validation
from mpx.runs import signals
from mpx.runs.own import OwnRun
from mpx.settings.recorder import check_record, plain
from mpx.sparsity.callback import Pruning


class Record(Callback):
    """Writes result.json when fitting ends, however it ends, and again after a test: `pl.Trainer(callbacks=[mpx.Record(study="mine")])`.

    result.json holds the values that the module logs in validation and test, and what mpx.Throughput, mpx.Numerics, mpx.Sparsity and the
    precision have measured. `python -m mpx.compare study=<study>` compares all runs of a study.

    study: name of the comparison; the folder is <output_dir>/<study>/<setting>/seed<N>/.
    model, data: names in tables; None: the classes of module and datamodule.
    seed: None: that of pl.seed_everything, otherwise 0.
    metric: a value that the module logs, such as "val/dice", by which runs are compared; None: accuracy or perplexity.
    metric_goal: max if the metric should rise, min if it should fall.
    changes: settings that distinguish this run from others, such as {"lr": 0.1}.
    if_exists: new (seed0-2 beside an earlier run), overwrite or error. A run that continues a checkpoint keeps its folder.

    On several devices, what the module logs for an epoch is combined over all processes, as with sync_dist=True.
    A metric that the module does not log is refused at the first validation, which Lightning runs before it trains.
    A run whose newest values or trained weights are not all finite counts as diverged.
    The first step is slow, because its operations are recorded.
    Raises UserError for a value that a record cannot hold, and, when training starts, for a folder that cannot be used.
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
        given = {"study": study, "metric": metric, "metric_goal": metric_goal, "output_dir": str(output_dir), "if_exists": if_exists}
        seed, changes = plain({"seed": seed})["seed"], plain(changes)
        check_record(given, {"model": model, "data": data, "seed": seed}, changes)
        self.study, self.model, self.data, self.seed, self.changes = study, model, data, seed, dict(changes or {})
        self.metric, self.goal, self.output_dir, self.if_exists = metric, metric_goal, output_dir, if_exists
        self._stage = None if metric is None else stage_of(metric)
        self.metrics = Newest()
        self.folder: Path | None = None  # of the run, from the start of training
        self._run: OwnRun | None = None
        self._continued: str | None = None
        self._sizes: Counter[int] = Counter()  # samples of a batch -> number of such batches
        self._epochs = 0  # that have begun
        self._validated: int | None = None  # the step of the newest validation

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            self._continued = None  # by an earlier Trainer, which failed; this one loads its checkpoint after this
        if trainer.world_size > 1:
            combine_what_is_logged(trainer)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Each fit is a run: nothing is left of an earlier one.
        self.metrics, self.folder, self._sizes, self._epochs, self._validated = Newest(), None, Counter(), 0, None
        device, plugin, pruning = trainer.strategy.root_device, trainer.precision_plugin, find(trainer, Pruning)
        throughput = find(trainer, Throughput)
        self._samples_of = samples_in if throughput is None else throughput.samples_of
        self._observed, self._exclusivity = observe_first_step(plugin, samples=self._samples_of), ExclusivityChecks(device)
        if self._stage not in (None, "train", "test") and not trainer.enable_validation:
            raise UserError(
                f"metric={self.metric}: the Trainer validates nothing. Give it validation data, or name a metric of train or test."
            )
        datamodule = type(trainer.datamodule).__name__ if trainer.datamodule is not None else "data"
        setting = {
            "model": self.model or type(pl_module).__name__,
            "data": self.data or datamodule,
            "precision": mode_of(plugin).name,
            "sparsity": "dense" if pruning is None else pruning.pattern,
            "seed": int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.seed is None else self.seed,
        }
        setting |= getattr(plugin, "changes", {}) | getattr(pruning, "changes", {}) | self.changes
        self._run = OwnRun(self.study, setting, output_dir=self.output_dir, if_exists=self.if_exists, metric=self.metric, goal=self.goal)
        reset_host_peak()
        reset_peak(device)
        keep_apart(precision=setting["precision"])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        host = host_of_all(host_id())
        if trainer.is_global_zero:
            self.folder = self._run.claim(None if self._continued is None else Path(self._continued))
            self._continued = None  # another Trainer's run is another one
            self._run.begin(environment(trainer.device_ids) | {"host": host})

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._sizes[self._samples_of(batch)] += 1
        self._observed.step.on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._observed.step.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._run is None:
            return
        hidden = trainer.sanity_checking and len(trainer.num_sanity_val_batches) > 1  # Lightning shows no metrics of several loaders then
        if self._stage not in ("train", "test") and not hidden:
            refuse_missing(self.metric, trainer, metrics_of(trainer))
        if not trainer.sanity_checking:
            self.metrics.take(trainer)
            self._validated = trainer.global_step
            self._exclusivity.look()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look for a metric of the training here, after the whole epoch before: the module may log it at the epoch's very end."""
        if self._stage == "train" and self._epochs > 0:
            refuse_missing(self.metric, trainer, metrics_of(trainer))
        self._epochs += 1

    def pruned(self, trainer: pl.Trainer) -> None:
        """The values so far are those of another model."""
        self.metrics.forget(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.take(trainer)
        self._write(trainer, None)
        self._say_status()
        self._say_missing("train")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.take(trainer)
        self._write(trainer, None)
        if self.folder is not None and self._run.record["status"] != "completed":
            self._say_status()
        self._say_missing("test")

    def _say_status(self) -> None:
        if self.folder is not None:
            why = f" ({self._run.record['error']})" if "error" in self._run.record else ""
            early = words_of_validation(self._run.record["environment"])
            print(f"{self._run.record['status']}{why}, recorded in {self.folder}{early}")

    def _say_missing(self, stage: str) -> None:
        if self._stage == stage and self.folder is not None and metric_name(self.metric) not in self.metrics:
            print(f"mpx.Record: metric={self.metric}: the module logs no such value. It logs {', '.join(sorted(self.metrics))}")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if self._run is not None:
            self._observed.step.on_exception(trainer, pl_module, exception)
            self._write(trainer, exception)

    def _write(self, trainer: pl.Trainer, exception: BaseException | None) -> None:
        if self.folder is None:  # training has not begun, or another process writes
            return
        record = self._run.record
        record |= parts_of(trainer, self._observed, self._exclusivity, self.output_dir) | {"metrics": self.metrics}
        note_validation(record, self._validated, trainer.global_step)
        record["config"]["data"]["batch_size"] = usual_size(self._sizes)
        devices = {"devices": trainer.num_devices, "num_nodes": trainer.num_nodes}
        record["config"]["trainer"] = devices | {"max_epochs": trainer.max_epochs, "max_steps": trainer.max_steps}
        unpruned = _unpruned(trainer) if exception is None else None
        status, line = ("failed", unpruned) if unpruned is not None else self._ending(trainer, exception)
        self._run.write(status, line)
        self._run.end()

    def _ending(self, trainer: pl.Trainer, exception: BaseException | None) -> tuple[str, str | None]:
        """The status, and one line about what is wrong."""
        if exception is not None:
            interrupted = signals.ends(exception) or trainer.received_sigterm  # a loader's worker gets it, too, and its end is an error
            return "interrupted" if interrupted else "diverged" if isinstance(exception, Diverged) else "failed", line_of(exception)
        plugin, lost = trainer.precision_plugin, None
        if isinstance(plugin, ModePrecision):
            lost = plugin.trouble() or plugin.idle()
        if lost is None and (bad := [name for name, value in self.metrics.items() if not math.isfinite(value)]):
            lost = f"{bad[0]} is infinite or NaN"
        if lost is None and (name := not_finite(trainer.lightning_module)) is not None:  # an accuracy is finite even then
            lost = f"the weights of {name} are infinite or NaN"
        return ("completed", None) if lost is None else ("diverged", lost)

    def state_dict(self) -> dict[str, Any]:
        return {"folder": None if self.folder is None else str(self.folder)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._continued = state_dict["folder"]


def _unpruned(trainer: pl.Trainer) -> str | None:
    """Why the trained model does not have its pattern; None if it has, or has none."""
    pruning = find(trainer, Pruning)
    if pruning is None or not pruning.masks.weights:
        return None
    try:
        pruning.assert_pattern(trainer, "the training was over")
    except UserError as error:
        if trainer.testing:
            return f"the tested weights are not {pruning.masks.pattern.name}. Test the newest, or a checkpoint from after the pruning."
        return str(error)
    return pruning.unfinished(trainer)
