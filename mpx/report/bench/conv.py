"""Convolutions: rates by format and layout, and what the choice of the algorithm costs and gains."""

from mpx.report.bench.tables import About, Row, device_name, flat, pivot, say_alone, say_why
from mpx.report.tables import console

DOWN = (("layer", "layer"), ("direction", "direction"), ("layout", "layout"), ("algorithm", "algorithm"))


def show(about: About, rows: list[Row]) -> None:
    out = console()
    name = device_name(about)
    out.print(pivot(f"Convolutions of {rows[0]['batch']} images on {name}, TFLOP/s", rows, DOWN, "format", "tflops_per_s"))
    if tuned := gains(rows):
        columns = (
            ("layer", "layer", None), ("direction", "direction", None), ("format", "format", None), ("layout", "layout", None),
            ("heuristic\nms", "heuristic_ms", ".3f"), ("autotuned\nms", "autotuned_ms", ".3f"), ("faster", "gain", ".2f"),
            ("workspace\nMiB", "heuristic_mib", ",.0f"), ("autotuned\nMiB", "autotuned_mib", ",.0f"),
        )  # fmt: skip
        out.print(flat("cuDNN's rule of thumb against timing its algorithms first: the ten largest gains", tuned[:10], columns))
    out.print(
        "im2col + GEMM: patches unfolded, then one matrix product. Workspace: what PyTorch's allocator gave beyond the result, copies in "
        "another layout included. cuDNN's single algorithms need its own front end and are not in here.",
        highlight=False,
    )
    say_why(out, rows, ("layer", "format"))
    say_alone(out, about)


def gains(rows: list[Row]) -> list[Row]:
    """Where both of cuDNN's ways were measured: times, workspaces and how many times as fast autotuning is; largest first."""
    found: dict[tuple, Row] = {}
    for row in rows:
        if row["ms"] and row["algorithm"] in ("heuristic", "autotuned"):
            key = {name: row[name] for name in ("layer", "direction", "format", "layout")}
            line = found.setdefault(tuple(key.values()), key)
            line[f"{row['algorithm']}_ms"], line[f"{row['algorithm']}_mib"] = row["ms"], row["workspace_mib"]
    both = [line for line in found.values() if "heuristic_ms" in line and "autotuned_ms" in line]
    return sorted((line | {"gain": line["heuristic_ms"] / line["autotuned_ms"]} for line in both), key=lambda line: -line["gain"])


def pictures(about: About, rows: list[Row]) -> list:
    from mpx.report.plots.grouped import grouped_bars
    from mpx.report.plots.picture import picture

    def draw():
        forward = [row for row in rows if row["direction"] == "forward" and row["tflops_per_s"]]
        bars: dict[str, dict[str, float]] = {}
        for row in forward:
            way = f"{row['layout']}, {row['algorithm']}"
            bars.setdefault(f"{row['layer']}, {row['format']}", {})[way] = row["tflops_per_s"]
        return grouped_bars(bars, "TFLOP/s, forward")

    return [picture("conv", "Convolutions", device_name(about), "Forward pass.", draw)]
