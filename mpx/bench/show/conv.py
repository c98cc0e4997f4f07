"""Convolutions: rates by format and layout, the gains of autotuning, and cuDNN's fastest algorithms."""

from mpx.bench.kernels.conv_plans import ALL
from mpx.bench.show.tables import About, Row, device_name, flat, pivot, say, say_alone, say_table, say_why
from mpx.render.plots.grouped import grouped_bars
from mpx.render.plots.picture import Picture, picture

DOWN = (("layer", "layer"), ("direction", "direction"), ("layout", "layout"), ("algorithm", "algorithm"))
FASTEST = "fastest plan"


def show(about: About, rows: list[Row]) -> None:
    name = device_name(about)
    best = fastest(rows)
    ways = of_pytorch(rows)
    title = f"Convolutions of {rows[0]['batch']} images on {name}, TFLOP/s"
    say_table(pivot(title, _side_by_side(ways + best), DOWN, "format", "tflops_per_s"))
    if tuned := gains(ways):
        columns = (
            ("layer", "layer", None), ("direction", "direction", None), ("format", "format", None), ("layout", "layout", None),
            ("heuristic\nms", "heuristic_ms", ".3f"), ("autotuned\nms", "autotuned_ms", ".3f"), ("faster", "gain", ".2f"),
            ("workspace\nMiB", "heuristic_mib", ",.0f"), ("autotuned\nMiB", "autotuned_mib", ",.0f"),
        )  # fmt: skip
        say_table(flat("cuDNN's rule of thumb against timing its algorithms first: the ten largest gains", tuned[:10], columns))
    if best:
        columns = (
            ("layer", "layer", None), ("direction", "direction", None), ("format", "format", None), ("plans\nright", "right", None),
            ("fastest", "engine", None), ("ms", "ms", ".3f"), ("workspace\nMiB", "workspace_mib", ",.0f"),
            ("without\nworkspace", "lean_engine", None), ("ms", "lean_ms", ".3f"), ("autotuned\nms", "autotuned_ms", ".3f"),
        )  # fmt: skip
        say_table(flat("Each of cuDNN's algorithms by itself: the fastest", best, columns))
        say(
            "Plan: one of cuDNN's engines with its settings, in channels_last. Plans under fp32 compute in IEEE FP32, plans under tf32 use "
            "Tensor Cores. The CSV lists every plan by name, and why it failed."
        )
    say(
        "im2col + GEMM: one matrix product over unfolded patches. Workspace: what PyTorch's allocator gave beyond the result, with "
        "copies in another layout; for a plan, the size that it requests."
    )
    say_why(ways, ("layer", "format"))
    for reason in dict.fromkeys(row["reason"] for row in rows if row["algorithm"] == ALL):
        if not any(row["reason"] == reason for row in ways):  # these reasons have been printed
            say(f"– each of cuDNN's algorithms by itself: {reason}")
    say_alone(about)


def _side_by_side(rows: list[Row]) -> list[Row]:
    """The rows of a layer and direction together."""
    order = list(dict.fromkeys((row["layer"], row["direction"]) for row in rows))
    return sorted(rows, key=lambda row: order.index((row["layer"], row["direction"])))


def of_pytorch(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["plan"] is None and row["algorithm"] != ALL]


def fastest(rows: list[Row]) -> list[Row]:
    """The fastest plan of each layer, direction and format, as algorithm FASTEST.

    right: the number of plans whose result is right, of all plans. lean_engine, lean_ms: the fastest plan without workspace.
    autotuned_ms: of PyTorch's choice in the same layout.
    """
    cases: dict[tuple, list[Row]] = {}
    for row in rows:
        if row["plan"] is not None:
            cases.setdefault(_case(row), []).append(row)
    tuned = {_case(row): row["ms"] for row in rows if (row["algorithm"], row["layout"]) == ("autotuned", "channels_last")}
    found = []
    for case, plans in cases.items():
        if right := sorted((row for row in plans if row["ms"]), key=lambda row: row["ms"]):
            lean = next((row for row in right if not row["workspace_mib"]), {"algorithm": "–", "ms": None})
            more = {"right": f"{len(right)} of {len(plans)}", "lean_engine": lean["algorithm"], "lean_ms": lean["ms"]}
            more |= {"engine": right[0]["algorithm"], "algorithm": FASTEST, "autotuned_ms": tuned.get(case)}
            found.append(right[0] | more)
    return found


def _case(row: Row) -> tuple:
    return row["layer"], row["direction"], row["format"]


def gains(rows: list[Row]) -> list[Row]:
    """Times and workspaces of the heuristic and of autotuning, and the speed-up; the largest speed-up first."""
    found: dict[tuple, Row] = {}
    for row in rows:
        if row["ms"] and row["algorithm"] in ("heuristic", "autotuned"):
            key = {name: row[name] for name in ("layer", "direction", "format", "layout")}
            line = found.setdefault(tuple(key.values()), key)
            line[f"{row['algorithm']}_ms"], line[f"{row['algorithm']}_mib"] = row["ms"], row["workspace_mib"]
    both = [line for line in found.values() if "heuristic_ms" in line and "autotuned_ms" in line]
    return sorted((line | {"gain": line["heuristic_ms"] / line["autotuned_ms"]} for line in both), key=lambda line: -line["gain"])


def plot(about: About, rows: list[Row]) -> Picture:
    def draw():
        forward = [row for row in of_pytorch(rows) + fastest(rows) if row["direction"] == "forward" and row["tflops_per_s"]]
        bars: dict[str, dict[str, float]] = {}
        for row in forward:
            way = f"{row['layout']}, {row['algorithm']}"
            bars.setdefault(f"{row['layer']}, {row['format']}", {})[way] = row["tflops_per_s"]
        return grouped_bars(bars, "TFLOP/s, forward")

    return picture("conv", "Convolutions", device_name(about), "Forward pass.", draw)
