"""The pruning callback by the name of a pattern: `pl.Trainer(callbacks=[mpx.Sparsity("2of4",
recipe="asp")])`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
from omegaconf import OmegaConf

from mpx.errors import UserError, nearest
from mpx.settings.arguments import checked, defaults
from mpx.settings.sparsity import check_recipe
from mpx.sparsity.callback import Pruning
from mpx.sparsity.choose import choose_pattern, choose_recipe, choose_rules, plan
from mpx.sparsity.layers import nothing_to_prune, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.recipes import Plan, Recipe

PATTERNS = ("2of4", "2of4_2d", "nofm", "unstructured")
# settings that no argument has
OF_THE_COMMAND = ("pattern", "backend", "dense_ckpt", "permute", "coverage", "sensitivity")


def arguments(pattern: str) -> dict[str, Any]:
    """Those of `Sparsity` for a pattern, and their defaults."""
    return {
        name: value for name, value in defaults("sparsity", pattern).items() if name not in OF_THE_COMMAND
    }


class Sparsity(Pruning):
    """Prunes any LightningModule while it trains, and holds the masks:
    `pl.Trainer(callbacks=[mpx.Sparsity("2of4")])`.

    With fixed masks, pruned weights, their gradients and their optimizer state are exactly zero after every
    step.

    pattern: 2of4, 2of4_2d (search: best or greedy), nofm (n of m neighbours), unstructured (density: share of
    weights that stay). settings: the keys of sparsity=, explained in conf/sparsity/2of4.yaml:
        recipe: asp, one_shot, from_start, gradual or sr_ste. decay: of sr_ste. start: share of the run before
        the pruning, 0 to below 1 (0.5); or start_step in optimizer steps. end: share of the run after which
        `gradual` has pruned everything.
        types, skip, only, shape_rule: which layers; skip and only are name patterns.
    after: functions that are called with the Trainer right after the pruning.

    The masks are made when training starts, because the weights and the number of steps are known only then.
    A checkpoint holds them, and a Trainer that loads it continues with them; any other `trainer.fit` begins
    without. With manual optimization, one batch is one step. With recipe="one_shot", call
    `prune_now(trainer)` after `trainer.fit`. The learning rate is the module's, and its schedule goes on at
    the pruning; a function in `after` may restart it. Raises UserError for settings that do not fit, and,
    when training starts, if nothing can be pruned. Source: Mishra et al., Accelerating Sparse Deep Neural
    Networks, arXiv:2104.08378 (2:4, asp); conf/sparsity/2of4.yaml names the others.
    """

    def __init__(
        self, pattern: str = "2of4", *, after: Sequence[Callable[[pl.Trainer], None]] = (), **settings: Any
    ):
        if pattern not in PATTERNS:
            raise UserError(
                f"mpx.Sparsity({pattern!r}): no such pattern.{nearest(str(pattern), PATTERNS)} "
                f"Allowed: {', '.join(PATTERNS)}."
            )
        usual = arguments(pattern)
        values = checked("sparsity", settings, usual, "mpx.Sparsity")
        self.pattern, self.then = pattern, after
        self.settings = OmegaConf.create(values | {"pattern": pattern, "dense_ckpt": None})
        check_recipe(self.settings, settings.keys())
        self.changes = {f"sparsity.{name}": value for name, value in values.items() if value != usual[name]}
        self._start_empty()

    def _start_empty(self) -> None:
        """Be without masks until training starts."""
        self._loaded: dict[str, Any] | None = None
        self._batches = 0  # finished ones: the steps, with manual optimization
        recipe = choose_recipe(self.settings, Plan(0, 0))
        super().__init__(Masks([], choose_pattern(self.settings)), recipe, after=[_tell, *self.then])

    @property
    def state_key(self) -> str:
        """That of the command's pruning, so that each continues the other's checkpoints."""
        return "Pruning"

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Forget an earlier training. Lightning loads a checkpoint's state after this."""
        if stage == "fit":
            self._start_empty()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The masks are made at the start of training, which knows how many steps there are."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.make_ready(trainer, pl_module)
        refuse_averages(trainer, pl_module, self.masks, self.recipe)
        self.masks.bind(pl_module)
        super().on_train_start(trainer, pl_module)

    def make_ready(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the masks, or take those of the checkpoint. Called when training starts, and for a run
        without a step left.
        """
        if self.masks.weights:
            return
        self.recipe = choose_recipe(self.settings, plan(self.settings, steps_of(trainer, pl_module)[0]))
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        trained = [parameter for group in groups for parameter in group["params"]]
        pattern = self.masks.pattern
        every = weights(pl_module, pattern, choose_rules(self.settings), trained)
        self.masks = Masks(every, pattern, remember=not self.recipe.fixed)
        if not self.masks.pruned:
            raise UserError(nothing_to_prune(pattern, every))
        if self._loaded is not None:
            super().load_state_dict(self._loaded)
            self._loaded = None

    def step_of(self, trainer: pl.Trainer) -> int:
        return trainer.global_step if trainer.lightning_module.automatic_optimization else self._batches

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches += 1
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Verify again, since averages replace the weights in other callbacks' on_train_end."""
        self.assert_pattern(trainer, "the training was over")

    def assert_pattern(self, trainer: pl.Trainer, when: str) -> None:
        if not self.masks.active:
            return
        self.masks.bind(trainer.lightning_module)
        try:
            super().assert_pattern(trainer, when)
        except RuntimeError as error:
            raise UserError(
                f"{error}. An optimizer that moves weights without gradients, such as Muon, changes them, "
                "or something in the module or in a callback, such as an average of weights. Leave that "
                "out, or use sparsity=dense."
            ) from error

    def prune_now(self, trainer: pl.Trainer) -> None:
        self.masks.bind(trainer.lightning_module)
        super().prune_now(trainer)

    def state_dict(self) -> dict[str, Any]:
        if not self.masks.weights:
            return self._loaded or {}
        return super().state_dict() | {"batches": self._batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until training starts, when the masks are made. Raises UserError for masks of another
        pattern.
        """
        if not state_dict:
            return
        if state_dict["by"][0] != (name := self.masks.pattern.name):
            raise UserError(
                f"the checkpoint was pruned to {state_dict['by'][0]}, mpx.Sparsity is {name}. "
                "Use the same pattern."
            )
        self._loaded, self._batches = state_dict, state_dict.get("batches", 0)


def refuse_averages(trainer: pl.Trainer, pl_module: pl.LightningModule, masks: Masks, recipe: Recipe) -> None:
    """Raise UserError for a callback whose average of weights would not be zero where the weights are pruned.

    should_update belongs to Lightning's WeightAveraging, swa_start to its StochasticWeightAveraging.
    """
    if recipe.after_training or (masks.complete and recipe.fixed):
        return
    end, (_, epoch) = recipe.plan.end, steps_of(trainer, pl_module)
    for callback in vars(trainer)["callbacks"]:
        name, averages = type(callback).__name__, getattr(callback, "should_update", None)
        if averages is None and not hasattr(callback, "swa_start"):
            continue
        if not recipe.fixed:
            raise UserError(
                f"sparsity={masks.pattern.name} with {name}: recipe={recipe.name} chooses other masks "
                "again and again, and an average over several masks has no pattern. Use recipe=asp, or leave "
                "the average out."
            )
        if averages is None:
            early = callback.swa_start <= end // epoch
        else:
            steps = any(averages(step_idx=step) for step in range(end))
            early = steps or any(averages(epoch_idx=index) for index in range(int(end // epoch)))
        if early:
            raise UserError(
                f"sparsity={masks.pattern.name} with {name}: it averages weights from before the pruning "
                f"at step {end}. Let it begin later, or prune earlier (sparsity.start_step, "
                "recipe=from_start)."
            )


def steps_of(trainer: pl.Trainer, pl_module: pl.LightningModule) -> tuple[float, float]:
    """(steps of the whole run, steps of an epoch). With manual optimization, a batch is a step. Infinite
    where they are unknown, as those of a loader without a length are.
    """
    batches = trainer.num_training_batches
    if pl_module.automatic_optimization:
        total = trainer.estimated_stepping_batches
        epoch = batches if math.isinf(batches) else math.ceil(batches / trainer.accumulate_grad_batches)
        return math.inf if total == -1 else total, epoch  # Lightning has -1 for a loader without a length
    epochs = trainer.max_epochs
    total = math.inf if epochs is None or epochs == -1 else batches * epochs
    if trainer.max_steps != -1:  # which counts the steps of each optimizer
        total = min(total, trainer.max_steps // max(1, len(trainer.optimizers)))
    return total, batches


def _tell(trainer: pl.Trainer) -> None:
    """The first steps after the pruning are warm-up again for mpx.Throughput, and mpx.Record forgets the
    values of the dense model.
    """
    for callback in vars(trainer)["callbacks"]:
        for name in ("restart_warmup", "forget_metrics"):
            if (hear := getattr(callback, name, None)) is not None:
                hear(trainer)
