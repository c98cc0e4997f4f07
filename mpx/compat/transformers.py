"""Callbacks for transformers.Trainer: 2:4 masks that hold through the training, and the record of the run.

pruning = SparsityCallback("2of4")
with mpx.Recorder(study="mine", setting=setting, model=model) as recorder:
    trainer = Trainer(model=model, args=args, callbacks=[pruning, RecorderCallback(recorder, pruning)], …)
    trainer.train()
    trainer.evaluate(test_set, metric_key_prefix="test")
"""

import math
import re
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback

from mpx.errors import UserError, nearest
from mpx.measure.batches import Shapes, samples_in, shapes_in
from mpx.record.parts import PATTERNS
from mpx.record.recorder import Recorder
from mpx.settings.fields import SPARSITY
from mpx.settings.values import check_value
from mpx.sparsity.coverage import record
from mpx.sparsity.layers import Rules, nothing_to_prune, weights
from mpx.sparsity.masks import Masks
from mpx.system.printing import how_many

NO_NAME = re.compile(r"[^\w.]")  # in a metric's name, as in f1-macro
SPLITS = {"eval": "val", "test": "test"}  # of Trainer's prefixes of metrics
# Trainer's, which include the warm-up
SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
RESUMED = "the run was continued after its pruning"


class SparsityCallback(TrainerCallback):
    """Prunes the model to `pattern` at `start`, a share of the run, and holds the masks: weights, gradients
    and the optimizer's state of pruned weights are zero at every later step. The learning rate's schedule
    goes on. Trainer's best checkpoint is one of the pruned model.

    pattern: 2of4 or 2of4_2d. rules: which layers. Gradients are masked after Trainer has clipped them, as
    NVIDIA's ASP does.
    Raises UserError if nothing can be pruned, RuntimeError if a finished or saved model breaks its pattern.
    """

    def __init__(self, pattern: str = "2of4", *, start: float = 0.5, rules: Rules | None = None):
        if pattern not in PATTERNS:
            raise UserError(
                f"pattern={pattern!r} must be one of {', '.join(PATTERNS)}.{nearest(str(pattern), PATTERNS)}"
            )
        check_value("sparsity.start", start, SPARSITY, "SparsityCallback")
        self.pattern, self.start, self.rules = pattern, start, rules or Rules()
        self.masks = Masks([], PATTERNS[pattern])  # of the model, once the training has begun
        self._continued = False  # from weights that were pruned already

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        pattern = PATTERNS[self.pattern]
        trained = [parameter for group in given["optimizer"].param_groups for parameter in group["params"]]
        self.masks = Masks(weights(given["model"], pattern, self.rules, trained), pattern)
        self._continued = state.global_step > self._at(state)
        if not self.masks.pruned:
            raise UserError(nothing_to_prune(pattern, self.masks.weights))

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not self.masks.active and state.global_step >= self._at(state):
            self.masks.prune([given["optimizer"]])
            # the best checkpoint is dense, and load_best_model_at_end would bring it back
            if not self._continued:
                state.best_metric = state.best_global_step = state.best_model_checkpoint = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.masks.active:
            self.masks.mask_gradients()

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.masks.active and (broken := self.masks.verify([given["optimizer"]])):
            raise RuntimeError(
                f"{how_many(len(broken), 'pruned weight')} broke the {self.pattern} pattern: "
                f"{', '.join(broken[:3])}"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.on_save(args, state, control, **given)

    def _at(self, state: Any) -> int:
        return min(round(self.start * state.max_steps), max(state.max_steps - 1, 0))

    def record(self) -> dict[str, Any]:
        """The sparsity part of result.json. Raises UserError before the training has begun."""
        if not self.masks.weights:
            raise UserError(
                "SparsityCallback has pruned nothing: no training has begun with it. Write "
                "Trainer(…, callbacks=[pruning])."
            )
        parameter = self.masks.weights[0].parameter
        sparsity = record(self.masks, "asp", fmt="bf16", device=parameter.device)
        if self._continued:  # what the pruning kept was measured before
            sparsity |= {"kept_magnitude": None, "kept_magnitude_reason": RESUMED}
            sparsity["layers"] = [layer | {"kept_magnitude": None} for layer in sparsity["layers"]]
        return sparsity


class RecorderCallback(TrainerCallback):
    """Tells `recorder`, whose `with` block is around one `Trainer.train`, of the steps, losses and metrics.

    pruning: the SparsityCallback of the same Trainer, given before this one. Metrics of `eval_` become
    `val/`, of `test_` `test/`. samples: of an optimizer step in this process; None: the first dimension that
    all tensors share with which the model is called.
    """

    def __init__(
        self, recorder: Recorder, pruning: SparsityCallback | None = None, *, samples: int | None = None
    ):
        self.recorder, self.pruning, self.samples = recorder, pruning, samples
        self._counting: RemovableHandle | None = None  # once the training has begun
        self._counted = 0  # samples of the current step, without those of the newest batch
        self._batch = 0  # samples of the newest batch
        self._shapes: set[Shapes] = set()  # of the samples in each call of the current step
        self._warmed = False  # the recorder knows that the model is pruned

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._counting is not None:
            raise UserError(
                "RecorderCallback records one Trainer.train, and this is a second one, as "
                "auto_find_batch_size makes them after a batch that did not fit. Set a batch size that "
                "fits, and make a Recorder and a Trainer for each training."
            )
        if args.n_gpu > 1:
            raise UserError(
                f"Trainer drives {args.n_gpu} GPUs in one process, which mpx does not measure. Set "
                "CUDA_VISIBLE_DEVICES=0, or use torchrun."
            )
        if self.pruning is not None and not self.pruning.masks.weights:
            raise UserError(
                "RecorderCallback has a SparsityCallback that Trainer was not given before it. Write "
                "Trainer(…, callbacks=[pruning, RecorderCallback(recorder, pruning)])."
            )
        if (scaler := getattr(given["optimizer"], "scaler", None)) is not None:  # accelerate's, of fp16=True
            self.recorder.scaled(scaler)
        if state.global_step > self.recorder.steps:  # Trainer goes on from a checkpoint
            self.recorder.continued(state.global_step)
        self._counting = given["model"].register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: nn.Module, given: tuple, named: dict[str, Any]) -> None:
        if model.training:
            batch = dict[Any, Any](enumerate(given)) | named
            samples = samples_in(batch)
            if samples is None and self.samples is None:
                raise UserError(
                    "RecorderCallback: the tensors with which Trainer calls the model differ in their "
                    "first dimension, so that the samples of a step are unknown. Give "
                    "RecorderCallback(recorder, samples=N), their number in a step of this process."
                )
            self._shapes.add(shapes_in(batch, samples))
            # a loss may call the model several times for one batch
            self._batch = max(self._batch, samples or 0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.pruning is not None and self.pruning.masks.active and not self._warmed:
            self._warmed = True
            self.recorder.pruned(self.pruning.record)
        self._counted, self._batch, self._shapes = 0, 0, set()
        self.recorder.begin_step()

    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._counted, self._batch = self._counted + self._batch, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.on_substep_end(args, state, control)
        shapes = self._shapes.pop() if len(self._shapes) == 1 else None
        self.recorder.end_step(self._counted if self.samples is None else self.samples, shapes)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        logs = given["logs"]
        if "loss" in logs and not args.fp16 and math.isnan(logs.get("grad_norm", 0.0)):
            # Trainer's logging_nan_inf_filter logs other losses in place of NaN. Without a GradScaler the
            # step was not skipped.
            logs = logs | {"loss": math.nan}
        names = {"loss": "train/loss", "learning_rate": "train/lr"}
        if values := {name: logs[key] for key, name in names.items() if key in logs}:
            self.recorder.log(values)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        with self.recorder.pause():  # leave out the saving, which is not part of a step
            pass

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        values = {}
        for key, value in given["metrics"].items():
            split, _, name = key.partition("_")
            if (
                split in SPLITS
                and not name.endswith(SPEEDS)
                and isinstance(value, int | float | torch.Tensor)
            ):
                values[f"{SPLITS[split]}/{NO_NAME.sub('_', name)}"] = value
        if not self.recorder.ended:
            self.recorder.metrics(values)
        elif args.process_index == 0:
            print(
                f"mpx.Recorder: its `with` block has ended, so it records no {', '.join(values)}. Put "
                "the evaluation into the block."
            )

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **given: Any) -> None:
        self.on_evaluate(args, state, control, metrics=metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._counting is not None:
            self._counting.remove()
