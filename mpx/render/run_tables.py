"""What a run prints at its end."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MOST_LISTED, MOST_SENSITIVE = 5, 20  # layers that a table names one by one


def console() -> Console:
    """A terminal's own width, or 120 columns where the output goes to a file."""
    found = Console()
    return found if found.is_terminal else Console(width=120)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def number(value: float | None, spec: str, unit: str = "") -> str:
    """A figure for people: '–' for unknown."""
    return "–" if value is None or not math.isfinite(value) else f"{value:{spec}}{unit}"


def print_run(record: dict[str, Any], folder: Path) -> None:
    """The closing table: accuracy, throughput, memory, loss scale, density, folder."""
    metrics, speed, memory = record["metrics"], record["speed"], record["memory"]
    precision, sparsity = record["precision"], record["sparsity"]
    rows = [("test accuracy", number(metrics.get("test/accuracy"), ".4f")), ("test loss", number(metrics.get("test/loss"), ".4f"))]
    if "test/perplexity" in metrics:
        rows[0] = ("test perplexity", number(metrics["test/perplexity"], ".2f"))
    rows += _rates(speed, emulated=precision["emulated"])
    rows.append(("time to train", number(speed["time_to_train_s"], ".1f", " s")))
    rows.append(_memory_row(memory))
    if precision["loss_scale"] is not None:
        final, skipped = precision["loss_scale"]["final"], precision["skipped_steps"]
        rows.append(("loss scale", f"{final:g} at the end, {skipped} of {skipped + precision['optimizer_steps']} steps skipped"))
    rows += _gradients(precision)
    rows.append(("sparsity", _sparsity(sparsity)))
    rows += _listed("stays dense", [layer for layer in sparsity["layers"] if not layer["pruned"]])
    rows += _permuted(sparsity.get("permutation"))
    rows.append(("folder", str(folder)))
    table = _table(folder.parent.name, "", "")
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _rates(speed: dict[str, Any], *, emulated: bool) -> list[tuple[str, str]]:
    if speed["train_samples_per_s"] is None:
        return [("throughput", "–, too few steps after the warm-up (trainer.warmup_steps)")]
    note = ", emulated: not the speed of this format" if emulated else ""
    rows = [("throughput", number(speed["train_samples_per_s"], ",.0f", " samples/s") + note)]
    if speed["step_ms_p50"] is not None:
        rows.append(("step", f"{speed['step_ms_p50']:.2f} ms median, {number(speed['step_ms_p95'], '.2f', ' ms')} 95th percentile"))
    if speed["mfu"] is not None:
        rows.append(("of the limit", f"{speed['mfu']:.1%} of {speed['mfu_reference']}"))
    return rows


def _gradients(precision: dict[str, Any]) -> list[tuple[str, str]]:
    """What the format did to the gradients of the sampled steps."""
    lost, unscaled, over = (precision[f"gradient_{name}_fraction"] for name in ("underflow", "underflow_unscaled", "overflow"))
    if lost is None:
        return []
    return [("gradients", f"{lost:.3%} vanish, {over:.3%} overflow; in FP16 without scaling {unscaled:.3%} would vanish")]


def print_coverage(layers: list[dict[str, Any]]) -> None:
    """One row per layer: pruned or why not, density, kept magnitude, and whether a sparse kernel exists for it here."""
    table = _table("coverage", "layer", "type", "shape", "pruned", "density", "magnitude kept", "sparse kernel")
    for layer in layers:
        shape = "×".join(map(str, layer["shape"]))
        pruned = "yes" if layer["pruned"] else f"no: {layer['reason']}"
        kernel = layer["sparse_kernel"] or (f"none: {layer['sparse_kernel_reason']}" if layer["sparse_kernel_reason"] else "–")
        shares = number(layer["density"], ".3f"), number(layer["kept_magnitude"], ".1%")
        table.add_row(layer["name"], layer["type"], shape, pruned, *shares, kernel)
    console().print(table)


def print_sensitivity(rows: Sequence[dict[str, Any]]) -> None:
    """The layers that lose most when pruned alone."""
    table = _table("sensitivity: the validation loss when one layer alone is pruned", "", "layer", "change", "loss", "magnitude kept")
    for rank, row in enumerate(rows[:MOST_SENSITIVE], 1):
        table.add_row(
            str(rank), row["name"], f"{row['loss_change']:+.5f}", number(row["loss"], ".5f"), number(row["kept_magnitude"], ".1%")
        )
    console().print(table)
    if len(rows) > MOST_SENSITIVE:
        print(f"and {len(rows) - MOST_SENSITIVE} more; sensitivity.csv lists them all")


def print_audit(audit: dict[str, Any]) -> None:
    """What ran in the audited step: one row per operation, those with the most FLOPs first."""
    total = sum(row["flops"] for row in audit["operations"]) or 1
    table = _table(
        "audit of one training step", "kind", "operation", "calls", "FLOPs", "inputs", "multiplied in", "sums in", "output", "Tensor Cores"
    )
    for row in audit["operations"]:
        cores = {True: "yes", False: "no", None: "–"}[row["tensor_cores"]]
        share = f"{row['flops'] / total:.1%}"
        formats = row["inputs"], row["fmt"], row["accumulator"], row["output"]
        table.add_row(row["kind"], row["name"], str(row["calls"]), share, *formats, cores)
    console().print(table)
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in audit["as_promised"].items())
    print(f"FLOPs in the formats that the mode promises: {shares}")
    if not audit["kernels_seen"]:
        print("Tensor Cores: only a CUDA device's kernels can tell.")


def _memory_row(memory: dict[str, Any]) -> tuple[str, str]:
    if memory["peak_allocated_gib"] is None:
        return "peak memory", number(memory["peak_rss_gib"], ".2f", " GiB of RAM")
    return "peak memory", number(memory["peak_allocated_gib"], ".2f", " GiB on the device")


def _sparsity(sparsity: dict[str, Any]) -> str:
    if sparsity["pattern"] == "dense":
        return "dense"
    pruned = sum(layer["pruned"] for layer in sparsity["layers"])
    state = "verified" if sparsity["verified"] else "NOT verified"
    return (
        f"{sparsity['pattern']}: density {number(sparsity['density'], '.3f')} in {pruned} of {len(sparsity['layers'])} layers, "
        f"{number(sparsity['kept_magnitude'], '.1%')} of the magnitude kept, {state}"
    )


def _permuted(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What reordering the channels brought, and why it was not done."""
    if found is None:
        return []
    if found["reason"] is not None:
        return [("permutation", f"none: {found['reason']}")]
    before, after = number(found["kept_before"], ".1%"), number(found["kept_after"], ".1%")
    rows = [("permutation", f"2of4 then keeps {after} of the magnitude instead of {before}")]
    return rows + _listed("not permuted", [layer for layer in found["layers"] if not layer["permuted"]])


def _listed(what: str, layers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    rows = [(what, f"{layer['name']}: {layer['reason']}") for layer in layers[:MOST_LISTED]]
    more = len(layers) - MOST_LISTED
    return rows + ([("", f"and {more} more; result.json lists them all")] if more > 0 else [])
