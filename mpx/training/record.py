"""Fill in a run's record, write TensorBoard's first and last values, and print the closing tables."""

from typing import Any

import numpy as np
import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mpx.data.datamodule import DataModule
from mpx.data.tasks import primary_metric
from mpx.errors import UserError
from mpx.measure.environment import host_of_all
from mpx.measure.memory import peak_memory
from mpx.precision.formats import FORMATS
from mpx.precision.gradients import LOWEST
from mpx.precision.numerics import Numerics
from mpx.precision.plugin import ModePrecision
from mpx.private.lightning import find
from mpx.record.parts import precision_part, sparsity_part, speed_part
from mpx.render import tensorboard
from mpx.render.run import print_coverage, print_profile, print_run, print_sensitivity
from mpx.runs import signals
from mpx.runs.folder import Folder
from mpx.runs.result import Predictions, write_predictions
from mpx.settings.fields import changes_result
from mpx.training.assemble import Run
from mpx.training.callbacks import EndsEarly
from mpx.training.module import TrainingModule


def start_logs(trainer: pl.Trainer, cfg: DictConfig, record: dict[str, Any], trial: str) -> None:
    """Write settings and environment to TensorBoard."""
    hparams = dict(record["setting"])
    # what was typed, also where it is the default, which a sweep's other jobs change
    for key in (word.partition("=")[0].lstrip("+") for word in HydraConfig.get().overrides.task):
        value = OmegaConf.select(cfg, key)
        if changes_result(key) and value is not None and not OmegaConf.is_config(value):
            hparams[key] = value
    config = OmegaConf.to_yaml(cfg, resolve=True)
    logger: Any = trainer.logger
    with signals.held():  # as in RunLogger
        tensorboard.write_first(logger.experiment, hparams, trial, config, record["environment"])


def fill_record(record: dict[str, Any], run: Run, *, together: bool = True) -> None:
    """Fill in the parts of result.json that are known after training, however it ended.

    together: every process of the run calls this, so that its hosts can be named.
    """
    measuring, precision = run.measuring, run.precision
    if together:
        record["environment"]["host"] = host_of_all(record["environment"].get("host"))
    record["metrics"] = run.results()
    if isinstance(run.datamodule, DataModule):
        name, goal = primary_metric(run.datamodule.data.spec)
        record["metric"] = {"name": f"test/{name}", "goal": goal}
        # checksums of samples, labels and order
        train_set, _, test_set = (f"{checksum:08x}" for checksum in run.history.data)
        record["data"] |= {"train_set": train_set, "test_set": test_set}
        record["data"] |= run.datamodule.padding(run.devices.count)
    # of a project
    record["config"]["data"].setdefault("batch_size", measuring.first.samples or None)
    record["speed"] = speed_part(
        measuring.throughput,
        measuring.first,
        measuring.exclusivity,
        record["config"]["output_dir"],
        devices=run.trainer.world_size,
    ) | {"chosen": run.choice().record() | run.acceleration.record()}
    if (tokens := record["data"].get("tokens_per_sample")) is not None:
        rate = record["speed"]["train_samples_per_s"]
        record["speed"]["train_tokens_per_s"] = rate * tokens if rate else None
    record["memory"] = peak_memory(run.devices.root)
    if (early := find(run.trainer, EndsEarly)) is not None and early.stopped_epoch:
        record["stopped_early"] = {"metric": early.monitor, "epochs": early.stopped_epoch + 1}
    record["precision"] = precision_part(
        precision, measuring.first.audit, measuring.numerics, precision.steps
    )
    if measuring.profile is not None:
        record["profile"] = measuring.profile.record(record["speed"], record["precision"])
    record["sparsity"] = sparsity_part(run.pruning, precision.mode.narrowest, run.devices.root)


def draw(numerics: Numerics, precision: ModePrecision) -> Any:
    """A figure of the exponents of all layers' gradients, with the limits of FP16 or, for 16 bits or fewer,
    of the mode's format.
    """
    # and with it matplotlib, only where there is something to draw
    from mpx.render.curves import exponent_figure

    scale, fmt = precision.loss_scale, FORMATS[precision.mode.narrowest]
    layers = {name: counts.tolist() for name, counts in numerics.layers.items()}
    return exponent_figure(
        layers, LOWEST, fmt if fmt.bits <= 16 else FORMATS["fp16"], scale.scale.item() if scale else 1.0
    )


def close(record: dict[str, Any], folder: Folder, run: Run) -> None:
    """End a completed run: write the last values to TensorBoard and print the tables."""
    if run.pruning is not None and not record["sparsity"]["verified"]:
        if (reason := run.pruning.unfinished(run.trainer)) is not None:
            raise UserError(reason)
        run.pruning.assert_pattern(run.trainer, "the training was over")
    if isinstance(run.module, TrainingModule) and run.module.right is not None:
        write_predictions(
            folder.path,
            Predictions(
                record["data"]["test_set"], len(run.module.right), np.packbits(run.module.right).tobytes()
            ),
        )
    trainer, numerics = run.trainer, run.measuring.numerics
    logger: Any = trainer.logger
    with signals.held():
        tensorboard.write_final(logger.experiment, record, trainer.global_step, logger.tags)
        if numerics.layers:
            logger.experiment.add_figure(
                "numerics/gradient_exponents", draw(numerics, run.precision), trainer.global_step
            )
        logger.close(record["metrics"], trainer.global_step)
    print_run(record, folder.path)
    if record["config"]["sparsity"].get("coverage"):
        print_coverage(record["sparsity"]["layers"])
    if record["sparsity"].get("sensitivity"):
        print_sensitivity(record["sparsity"]["sensitivity"])
    if "profile" in record:
        print_profile(record["profile"])
