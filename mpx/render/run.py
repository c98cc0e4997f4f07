"""The tables that a run prints at its end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpx.measure.exclusive import BUSY
from mpx.render.table import Column, Table, console, print_table, words
from mpx.runs.result import EMULATED, judged_by_record
from mpx.system.printing import UNKNOWN, digits, number, rate, share_digits, shown

MAX_REASONS, MAX_SENSITIVE = 5, 20  # layers that a table lists
MAX_OPERATIONS = 12
MAX_METRICS = 8
MUCH_PADDING = 0.3  # of the tokens: from here on the summary says what helps
AUDIT = (
    "kind", "operation", "calls", "FLOPs", "inputs", "multiplied in", "sums in", "output", "Tensor Cores",
)  # fmt: skip
CORES = {True: "yes", False: "no", None: UNKNOWN}  # how a table shows whether Tensor Cores were used
STAGES = ("val", "test", "own/")  # the first parts of an evaluation's metrics


def print_run(record: dict[str, Any], folder: Path) -> None:
    """The closing table: accuracy, throughput, memory, loss scale, density, folder."""
    speed, memory = record["speed"], record["memory"]
    precision, sparsity = record["precision"], record["sparsity"]
    rows = _metrics(record) if "module" in record["config"] else _judged(record)
    rows += _rates(speed, emulated=precision["emulated"]) + _padding(record.get("data") or {})
    rows.append(("time to train", number(took := speed["time_to_train_s"], digits(took, 1), " s")))
    rows.append(_memory_row(memory))
    if precision["loss_scale"] is not None:
        final, skipped = precision["loss_scale"]["final"], precision["skipped_steps"]
        rows.append(
            (
                "loss scale",
                f"{final:g} at the end, {skipped} of {skipped + precision['optimizer_steps']} steps skipped",
            )
        )
    rows += _gradients(precision) + _linear_layers(precision.get("linear_layers"))
    rows.append(("sparsity", _sparsity(sparsity)))
    rows += _reasons("stays dense", [layer for layer in sparsity["layers"] if not layer["pruned"]])
    rows += _permuted(sparsity.get("permutation"))
    title = "{model} on {data}, {precision}-{sparsity}, seed {seed}".format(**record["setting"])
    print_table(Table(title, words("", ""), rows), head=False)
    console().print(shown(f"folder {folder}"), soft_wrap=True)  # broken, it could not be copied


def _judged(record: dict[str, Any]) -> list[tuple[str, str]]:
    metrics, judged = record["metrics"], judged_by_record(record)
    return [
        (judged.words, number(metrics.get(judged.name), judged.spec)),
        ("test loss", number(metrics.get("test/loss"), ".4f")),
    ]


def _metrics(record: dict[str, Any]) -> list[tuple[str, str]]:
    """For a project: the metric by which it is compared, then the other metrics that it logs in validation
    and test.
    """
    metrics, chosen = record["metrics"], (record["metric"] or {}).get("name")
    names = sorted(name for name in metrics if name != chosen and name.startswith(STAGES))[:MAX_METRICS]
    return [
        (name.replace("/", " "), number(metrics.get(name), ".4g"))
        for name in ([chosen] if chosen else []) + names
    ]


def _rates(speed: dict[str, Any], *, emulated: bool) -> list[tuple[str, str]]:
    if speed["train_samples_per_s"] is None:
        return [("throughput", "–, too few steps after the warm-up (trainer.warmup_steps)")]
    note = f", {EMULATED}" if emulated else ""
    if speed["exclusive"] is False:
        note += f" (shared: {speed['exclusive_reason']})"
    elif (others := speed.get("cpu_used_by_others") or 0.0) >= BUSY:
        note += f", while other programs used {others:.0%} of the CPU"
    rows = [("throughput", rate(speed["train_samples_per_s"], " samples/s") + note)]
    if speed["step_ms_p50"] is not None:
        rows.append(
            (
                "step",
                f"{speed['step_ms_p50']:.2f} ms median, "
                f"{number(speed['step_ms_p95'], '.2f', ' ms')} 95th percentile",
            )
        )
    if speed["mfu"] is not None:
        rows.append(("of the limit", f"{speed['mfu']:.1%} of {speed['mfu_reference']}"))
    return rows


def _padding(data: dict[str, Any]) -> list[tuple[str, str]]:
    """What could make a run on texts faster, if much of it is padding."""
    share, lengths = data.get("padding_fraction") or 0.0, data.get("lengths", [])
    if share < MUCH_PADDING or len(lengths) > 1:
        return []
    return [("padding", f"{share:.0%} of the tokens; data.lengths=auto puts similar lengths together")]


def _linear_layers(layers: list[dict[str, Any]] | None) -> list[tuple[str, str]]:
    """How many linear layers of a run in FP8 are in FP8, and why the first of the others is not."""
    if not layers:
        return []
    others = [layer for layer in layers if layer["reason"]]
    why = f"; {others[0]['name']}: {others[0]['reason']}" if others else ""
    return [("in FP8", f"{len(layers) - len(others)} of {len(layers)} linear layers{why}")]


def _gradients(precision: dict[str, Any]) -> list[tuple[str, str]]:
    """Underflow and overflow of the gradients in the sampled steps."""
    lost, unscaled, over = (
        precision[f"gradient_{name}_fraction"] for name in ("underflow", "underflow_unscaled", "overflow")
    )
    if lost is None:
        return []
    shares = (number(share, share_digits(share)) for share in (lost, over, unscaled))
    return [("gradients", "{} vanish, {} overflow; in FP16 without scaling {} would vanish".format(*shares))]


def print_coverage(layers: list[dict[str, Any]]) -> None:
    """One row per layer: pruned or why not, density, kept magnitude, and whether this device has a sparse
    kernel for it.
    """
    rows = []
    for layer in layers:
        pruned = "yes" if layer["pruned"] else f"no: {layer['reason']}"
        kernel = layer["sparse_kernel"] or (
            f"none: {layer['sparse_kernel_reason']}" if layer["sparse_kernel_reason"] else UNKNOWN
        )
        shares = number(layer["density"], ".3f"), number(layer["kept_magnitude"], ".1%")
        rows.append(
            (layer["name"], layer["type"], "×".join(map(str, layer["shape"])), pruned, *shares, kernel)
        )
    print_table(
        Table(
            "coverage",
            words("layer", "type", "shape", "pruned", "density", "magnitude kept", "sparse kernel"),
            rows,
        )
    )


def print_sensitivity(rows: Sequence[dict[str, Any]]) -> None:
    """Print the most sensitive layers. rows: of mpx.sparsity.coverage.sensitivity."""
    lines = [
        (
            str(rank),
            row["name"],
            f"{row['loss_change']:+.5f}",
            number(row["loss"], ".5f"),
            number(row["kept_magnitude"], ".1%"),
        )
        for rank, row in enumerate(rows[:MAX_SENSITIVE], 1)
    ]
    title = "sensitivity: the validation loss with only one layer pruned"
    print_table(Table(title, words("", "layer", "change", "loss", "magnitude kept"), lines))
    if len(rows) > MAX_SENSITIVE:
        print(f"and {len(rows) - MAX_SENSITIVE} more; result.json lists them all")


def print_audit(audit: dict[str, Any]) -> None:
    """One row per operation of the audited step, those with the most FLOPs first."""
    total = sum(row["flops"] for row in audit["operations"]) or 1
    rows = [
        (
            row["kind"], row["name"], str(row["calls"]), f"{row['flops'] / total:.1%}", row["inputs"],
            row["fmt"], row["accumulator"],
            row["output"], CORES[row["tensor_cores"]],
        )
        for row in audit["operations"]
    ]  # fmt: skip
    print_table(Table("audit of one training step", words(*AUDIT), rows))
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in audit["as_promised"].items())
    print(f"FLOPs in the formats that the mode promises: {shares}")
    if not audit["kernels_seen"]:
        print("Tensor Cores: only a CUDA device's kernels can tell.")


def print_profile(profile: dict[str, Any]) -> None:
    """The slowest operations of `profile=true`, and what limits the run. profile: as mpx.measure.profile
    records it.
    """
    if rows := profile["operations"]:
        what = "operation" if profile["launches"] is None else "kernel"
        columns = [
            *words(what),
            *map(Column, ("calls", "ms", "share")),
            *words("format", "Tensor Cores"),
        ]
        lines = [
            (
                row["operation"],
                f"{row['calls']:.4g}",
                f"{row['ms']:.3f}",
                f"{row['share']:.1%}",
                row["format"] or UNKNOWN,
                CORES[row["tensor_cores"]],
            )
            for row in rows[:MAX_OPERATIONS]
        ]
        title = f"where a step's time goes, of {profile['steps']} steps"
        print_table(Table(title, columns, lines).known(4))
        more = f"and {len(rows) - MAX_OPERATIONS} more in result.json; " if len(rows) > MAX_OPERATIONS else ""
        print(f"{more}trace: {profile['trace']} (open it at https://ui.perfetto.dev)")
    unknown = f"profile: what limits the run is unknown, since {profile.get('reason')}."
    print(unknown if profile["bound"] is None else profile["sentence"])


def _memory_row(memory: dict[str, Any]) -> tuple[str, str]:
    on_device = memory["peak_allocated_gib"]
    gib, where = (memory["peak_rss_gib"], "of RAM") if on_device is None else (on_device, "on the device")
    return "peak memory", number(gib, digits(gib, 2), f" GiB {where}")


def _sparsity(sparsity: dict[str, Any]) -> str:
    if sparsity["pattern"] == "dense":
        return "dense"
    pruned = sum(layer["pruned"] for layer in sparsity["layers"])
    state = "verified" if sparsity["verified"] else "NOT verified"
    return (
        f"{sparsity['pattern']}: density {number(sparsity['density'], '.3f')} in {pruned} of "
        f"{len(sparsity['layers'])} layers, "
        f"{number(sparsity['kept_magnitude'], '.1%')} of the magnitude kept, {state}"
    )


def _permuted(permutation: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The gain from reordering the channels."""
    if permutation is None:
        return []
    before, after = (number(permutation[name], ".1%") for name in ("kept_before", "kept_after"))
    gain = f"2of4 then keeps {after} of the magnitude instead of {before}"
    return [("permutation", f"none: {permutation['reason']}" if permutation["reason"] else gain)]


def _reasons(what: str, layers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    rows = [(what, f"{layer['name']}: {layer['reason']}") for layer in layers[:MAX_REASONS]]
    more = len(layers) - MAX_REASONS
    return rows + ([("", f"and {more} more; result.json lists them all")] if more > 0 else [])
