"""The output of `profile=true`: a table of the slowest operations, profile.csv with all of them, a roofline plot of the layers' products,
and the bottleneck of the run."""

from pathlib import Path
from typing import Any

from mpx.compare.words import UNKNOWN
from mpx.csv_file import to_text
from mpx.measure.exclusive import BUSY
from mpx.record.result import EMULATED
from mpx.render.run import CORES
from mpx.render.table import Column, Table, print_table
from mpx.whole_file import write_whole

MAX_OPERATIONS = 12  # rows of the printed table
COLUMNS = ("operation", "calls", "ms", "share", "format", "tensor_cores", "gflop", "mib", "roofline", "limit", "roofline_reason", "kernels")


def report_profile(profile: dict[str, Any], folder: Path) -> None:
    """Print the profile, and write profile.csv, roofline.png and roofline.svg to `folder`. profile: as mpx.measure.profile records it."""
    if profile["bound"] is None:
        print(f"profile: nothing to show, since {profile['reason']}.")
        return
    rows = (row | {"kernels": "; ".join(row["kernels"])} for row in profile["operations"])
    write_whole(folder / "profile.csv", to_text(COLUMNS, rows))
    print_table(_table(profile))
    for line in _lines(profile, roofline(profile, folder)):
        print(line)


def roofline(profile: dict[str, Any], folder: Path) -> bool:
    """Draw the layers with known FLOPs against the device's limits. Returns whether there was anything to draw."""
    from mpx.render.picture import picture, save
    from mpx.render.rates import Point, roofline_figure

    points = [Point(row["operation"], row["format"], row["flops_per_byte"], row["tflops_per_s"]) for row in profile["layers"]]
    tops, bandwidth = profile["limit_tflops_per_s"], profile["limit_gb_per_s"]
    title = "the layers of a plain step"
    drawn = picture("roofline", "Roofline", title, profile["limits"] or "", lambda: roofline_figure(points, bandwidth, tops))
    if not drawn.reason:
        save(drawn, folder)
    return not drawn.reason


def _table(profile: dict[str, Any]) -> Table:
    note = f", {EMULATED}" if profile["emulated"] else ""
    rows = []
    for row in profile["operations"][:MAX_OPERATIONS]:
        limit = f"{row['roofline']:.0%}" if row["roofline"] is not None else UNKNOWN
        figures = str(row["calls"]), f"{row['ms']:.3f}", f"{row['share']:.1%}", row["format"] or UNKNOWN, CORES[row["tensor_cores"]], limit
        rows.append((row["operation"], *figures, row["limit"] or UNKNOWN))
    columns = [Column(profile["rows"].removesuffix("s"), words=True, max_width=48)]
    for head in ("calls", "ms", "share", "format", "Tensor Cores", "of its limit", "limited by"):
        columns.append(Column(head, words=head in ("format", "Tensor Cores", "limited by")))
    return Table(f"where a step's time goes ({profile['steps']}){note}", columns, rows)


def _lines(profile: dict[str, Any], drawn: bool) -> list[str]:
    """The lines below the table. The last one says what limits the run."""
    found = []
    if (rest := len(profile["operations"]) - MAX_OPERATIONS) > 0:
        found.append(f"and {rest} more; profile.csv lists them all")
    limits = f"limits: {profile['limits']}" if profile["limits"] else f"limits unknown: {profile['limits_reason']}"
    waited = f"waiting for the batch takes {profile['waited_ms']:.3g} ms"
    found.append(f"a step takes {profile['step_ms']:.3g} ms{_computing(profile)}; {waited}; {limits}")
    if any((row["roofline"] or 0) > 1 for row in profile["operations"][:MAX_OPERATIONS]):
        found.append("above 100% of the limit: the data came from caches, which are faster than memory")
    found += ["roofline.png places the products and convolutions of each layer beneath these limits"] if drawn else []
    found.append(f"trace: {profile['trace']} (open it at https://ui.perfetto.dev)")
    if (busy := profile["cpu_busy"]) is not None and busy > BUSY:
        found.append(f"Other programs kept {busy:.0%} of the CPU's cores busy: times are too long, and this may be what limits the run.")
    return [*found, profile["sentence"]]


def _computing(profile: dict[str, Any]) -> str:
    """The device's computing as a part of a step. On a CPU, a separate step times operations one by one, which may take longer. The
    operations of a compiled step are unknown, and so is this part."""
    if profile["launches"] is None and profile["compiled"]:
        return ", compiled"
    if profile["launches"] is None:
        return f", its operations {profile['busy_ms']:.3g} ms when timed one by one"
    gaps = f"idle for {profile['idle_fraction']:.0%}, when traced {profile['longest_gap_ms']:.3g} ms at the longest"
    return f", of which the device computes {profile['busy_ms']:.3g} ms, {profile['launches']} kernels and copies ({gaps})"
