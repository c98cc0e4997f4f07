"""The reference card: one table of the formats' properties, one of the rates of their matrix products here."""

from mpx.bench.show.tables import RATE, About, Row, Table, device_name, flat, say, say_alone, say_peaks, say_table
from mpx.render.plots.grouped import grouped_bars
from mpx.render.plots.picture import Picture, picture

WHY = "why –"  # header of the column that says why a figure is missing


def show(about: About, rows: list[Row]) -> None:
    """about: device, exclusive and environment; rows: those of mpx.bench.kernels.formats."""
    say_table(_card(rows))
    for row in rows:
        if row["note"]:
            say(f"{row['format']}: {row['note']}")
    say_table(_rates(about, rows))
    say("Random operands; int8 in TOP/s; error: ‖out − ref‖ ÷ ‖ref‖, ref being the same product in float64 (for fp64 itself).")
    say_peaks(about)
    say_alone(about)


def plot(about: About, rows: list[Row]) -> Picture:
    """The measured rates beside the vendor's."""
    ways = {"measured here": "tflops_per_s", "vendor's dense peak": "peak_tflops_per_s"}
    bars = {row["format"]: {way: row[key] for way, key in ways.items() if row[key]} for row in rows}
    draw = lambda: grouped_bars(bars, "TFLOP/s (int8: TOP/s)")  # noqa: E731
    return picture("formats", "Square matrix products", device_name(about), "By number format.", draw)


def _card(rows: list[Row]) -> Table:
    heads = ("bits", "exponent", "mantissa", "epsilon", "smallest normal", "smallest subnormal", "largest", "digits")
    specs = ("d", "d", "d", ".4g", ".4g", ".4g", ".5g", ".1f")
    names = (
        "bits", "exponent_bits", "mantissa_bits", "epsilon", "smallest_normal", "smallest_subnormal", "largest", "significant_digits",
    )  # fmt: skip
    return flat("What each format can hold", rows, [("format", "format", None), *zip(heads, names, specs, strict=True)])


def _rates(about: About, rows: list[Row]) -> Table:
    columns = (
        ("format", "format", None), ("size", "size", "d"), ("TFLOP/s", "tflops_per_s", RATE), ("vendor peak", "peak_tflops_per_s", RATE),
        ("of peak", "share_of_peak", ".0%"), ("error", "relative_error", ".1e"), (WHY, "why", None),
    )  # fmt: skip
    reasons = ("tflops_per_s_reason", "peak_tflops_per_s_reason")
    told = [row | {"why": next((row[key] for key in reasons if row[key]), "")} for row in rows]
    return flat(f"Square matrix products on {device_name(about)}", told, columns)
