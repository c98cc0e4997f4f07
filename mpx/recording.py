"""What a run reports: scalars while it trains, its record and its closing table."""

from collections import defaultdict
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf

from mpx import fast
from mpx.measure.ceilings import mfu
from mpx.measure.devices import exclusive
from mpx.measure.memory import peak_memory
from mpx.module import TrainingModule
from mpx.parts import Parts
from mpx.precision.formats import FORMATS
from mpx.precision.gradients import LOWEST
from mpx.render import tensorboard
from mpx.render.profile import report_profile
from mpx.render.run import print_coverage, print_run
from mpx.render.sensitivity import report_sensitivity
from mpx.run.folder import Folder
from mpx.speed.choice import Choice

DENSE = dict.fromkeys(("backend", "recipe", "verified", "density", "kept_magnitude")) | {
    "pattern": "dense",
    "pruned_share": 0.0,
    "layers": [],
}
EMULATED = "emulated: not the speed of this format"


def start_logs(trainer: pl.Trainer, cfg: DictConfig, record: dict[str, Any], trial: str) -> None:
    setting = record["setting"]
    hparams = {key: setting[key] for key in tensorboard.FIRST}
    hparams |= {"optimizer": cfg.optimizer.name, "lr": cfg.optimizer.lr, "batch_size": cfg.data.batch_size}
    writer = trainer.logger.experiment
    tensorboard.write_hparams(writer, hparams, trial)
    tensorboard.write_layout(writer)
    tensorboard.write_text(writer, OmegaConf.to_yaml(cfg, resolve=True), record["environment"])


def numerics(parts: Parts) -> dict[str, float | None]:
    precision = parts.precision
    if precision.loss_scale is None:
        return {}
    return {"numerics/loss_scale": precision.loss_scale.scale.item(), "numerics/skipped_steps": precision.skipped}


def speed_and_memory(parts: Parts) -> dict[str, float | None]:
    parts.alone.append(exclusive(parts.device))
    memory = peak_memory(parts.device)
    kept = ("peak_allocated_gib", "peak_reserved_gib", "peak_rss_gib")
    return {"speed/train_samples_per_s": parts.throughput.samples_per_s} | {f"memory/{key}": memory[key] for key in kept}


def fill_record(record: dict[str, Any], module: TrainingModule, parts: Parts, choice: Choice) -> None:
    """The parts of result.json that are known once training has begun, however it ended."""
    record["metrics"] = module.results
    flops = parts.flops.get_total_flops() / parts.first_step.samples if parts.first_step.samples else None
    looks = [*parts.alone, exclusive(parts.device)]  # after every epoch and now
    alone, reason = next((look for look in looks if look[0] is False), looks[-1])
    record["speed"] = parts.throughput.record(flops) | {"exclusive": alone, "exclusive_reason": reason}
    record["speed"] |= _share_of_limit(record, parts, module.trainer.world_size) | {"chosen": fast.record(module, choice)}
    record["memory"] = peak_memory(parts.device)
    if parts.profile is not None:
        record["profile"] = parts.profile.record()
    mode = parts.precision.mode
    record["precision"] = {
        "mode": mode.name,
        "emulated": parts.precision.emulate,
        "formats": mode.formats,
        "observed": parts.audit.observed(),
        "audit": parts.audit.record(),
    }
    record["precision"] |= parts.precision.record() | parts.numerics.record()
    record["sparsity"] = dict(DENSE) if parts.pruning is None or parts.pruning.masks is None else _sparsity(parts)


def _share_of_limit(record: dict[str, Any], parts: Parts, count: int) -> dict[str, Any]:
    """MFU against the peaks of the formats in which the watched step's operations ran."""
    if parts.precision.emulate:
        return {"mfu": None, "mfu_reason": EMULATED}
    flops: dict[str, int] = defaultdict(int)
    for row in parts.audit.rows():
        flops[row.fmt] += row.flops
    return mfu(record["speed"]["model_tflops_per_s"], flops, parts.device, record["config"]["output_dir"], count=count)


def _sparsity(parts: Parts) -> dict[str, Any]:
    return parts.pruning.record(fmt=parts.precision.mode.formats["linear"], device=parts.device)


def draw(parts: Parts) -> Any:
    """The exponents of all layers' gradients, with the limits of FP16 or of the mode's own format."""
    from mpx.render.exponents import exponent_figure  # and with it matplotlib, only where there is something to draw

    scale = parts.precision.loss_scale
    fmt = FORMATS[parts.precision.mode.gradients]
    layers = {name: counts.tolist() for name, counts in parts.numerics.layers.items()}
    return exponent_figure(layers, LOWEST, fmt if fmt.bits <= 16 else FORMATS["fp16"], scale.scale.item() if scale else 1.0)


def close(trainer: pl.Trainer, record: dict[str, Any], folder: Folder, parts: Parts) -> None:
    """A finished run: last values to TensorBoard, tables to the terminal."""
    if parts.pruning is not None and not record["sparsity"]["verified"]:
        raise RuntimeError(f"sparsity: the finished model breaks the {record['sparsity']['pattern']} pattern")
    final = {name.replace("/", "_"): value for name, value in record["metrics"].items() if name.startswith("test/")}
    final |= {"train_samples_per_s": record["speed"]["train_samples_per_s"], "skipped_steps": record["precision"]["skipped_steps"]}
    final |= {"peak_allocated_gib": record["memory"]["peak_allocated_gib"]}
    tensorboard.write_final(trainer.logger.experiment, {k: v for k, v in final.items() if v is not None}, trainer.global_step)
    if parts.numerics.layers:
        trainer.logger.experiment.add_figure("numerics/gradient_exponents", draw(parts), trainer.global_step)
    trainer.logger.close()
    print_run(record, folder.path)
    if record["config"]["sparsity"].get("coverage"):
        print_coverage(record["sparsity"]["layers"])
    if record["sparsity"].get("sensitivity"):
        report_sensitivity(record["sparsity"]["sensitivity"], folder.path)
    if "profile" in record:
        report_profile(record["profile"], folder.path)
