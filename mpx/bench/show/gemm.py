"""Matrix products: square ones by size, BERT's layers dense and 2:4, batches of small ones."""

from mpx.bench.show.tables import About, Row, cpu_name, device_name, flat, pivot, say, say_alone, say_table, say_why
from mpx.render.plots.picture import Picture, picture
from mpx.render.plots.rates import Curve, rates_figure

DOWN = (("format", "format"), ("library", "library"), ("pattern", "pattern"), ("called", "how"))


def show(about: About, rows: list[Row]) -> None:
    for device in dict.fromkeys(row["device"] for row in rows):
        name = device_name(about) if device == about["device"] else cpu_name(about)
        here = [row for row in rows if row["device"] == device]
        square, small = ([row for row in here if row["shape"] == shape] for shape in ("square", "batched"))
        say_table(pivot(f"Square products on {name}, TFLOP/s by size", square, DOWN, "rows", "tflops_per_s"))
        if layers := linear_rows(here):
            say_table(_layers(f"BERT's linear layers on {name}, TFLOP/s", layers))
        say_table(
            pivot(
                f"{small[0]['batch']} small products at once on {name}, TFLOP/s by size", small, DOWN[:1] + DOWN[3:], "rows", "tflops_per_s"
            ),
        )
    say(
        "Random operands, each result checked against float64 first. int8 in TOP/s. A 2:4 product counts the operations of the dense one. "
        "graph: ten calls in one CUDA graph, for 2:4 with the algorithm searched."
    )
    if host := least_by_call(rows):
        say(f"Called alone, a 2:4 product takes {host:.2f} ms or more, since the host plans it at every call; a CUDA graph avoids that.")
    say_why(rows, ("format", "shape"))
    say_alone(about, cpu_too=True)


def least_by_call(rows: list[Row]) -> float | None:
    """Milliseconds of the fastest 2:4 product of any size outside a graph; None where none was measured."""
    return min((row["ms"] for row in rows if row["ms"] and (row["pattern"], row["how"]) == ("2of4", "eager")), default=None)


def linear_rows(rows: list[Row]) -> list[Row]:
    """One row per layer and format: its rates, and the speed-up of 2:4 over dense, each in a graph."""
    found: dict[tuple, Row] = {}
    for row in rows:
        if row["shape"] == "linear" and row["tflops_per_s"]:
            shape = f"{row['rows']}×{row['columns']}×{row['inner']}"
            line = found.setdefault((shape, row["format"]), {"layer": shape, "format": row["format"]} | dict.fromkeys(WAYS))
            line[f"{row['pattern']} {row['how']}"] = row["tflops_per_s"]
    for line in found.values():
        dense, sparse = line["dense graph"], line["2of4 graph"]
        line["speed-up"] = sparse / dense if sparse and dense else None
    return list(found.values())


WAYS = ("dense eager", "dense graph", "2of4 eager", "2of4 graph")


def _layers(title: str, layers: list[Row]):
    ways = [way for way in WAYS if any(line[way] for line in layers)]
    columns = [("tokens×out×in", "layer", None), ("format", "format", None), *((way, way, "rate") for way in ways)]
    return flat(title, layers, columns + ([("2:4 ÷ dense", "speed-up", ".2f")] if "2of4 graph" in ways else []))


def plot(about: About, rows: list[Row]) -> Picture:
    draw = lambda: rates_figure(_panels(rows), "rows and columns", "TFLOP/s (int8: TOP/s)")  # noqa: E731
    return picture("gemm", "Square matrix products", device_name(about), "Logarithmic on both axes.", draw)


def _panels(rows: list[Row]) -> dict[str, list]:
    """A panel each for GPU and CPU, with one colour per format and one line style per library."""
    formats = list(dict.fromkeys(row["format"] for row in rows))
    ways = [("torch", "dense"), ("numpy", "dense"), ("cuSPARSELt", "2of4")]
    names = ("", " by NumPy", " 2:4")
    panels: dict[str, list] = {}
    for device in dict.fromkeys(row["device"] for row in rows):
        curves: dict[tuple, list] = {}
        for row in rows:
            line = ways.index((row["library"], row["pattern"]))
            best = row["how"] == ("graph" if device == "cuda" else "eager")
            if row["device"] == device and row["shape"] == "square" and row["tflops_per_s"] and best:
                curves.setdefault((row["format"], line), []).append((row["rows"], row["tflops_per_s"]))
        panels["GPU, in CUDA graphs" if device == "cuda" else "CPU"] = [
            Curve(fmt + names[line], points, formats.index(fmt), line) for (fmt, line), points in curves.items()
        ]
    return panels
