"""The reference card on the terminal: one table of what the formats hold, one of how fast this machine multiplies in them."""

from typing import Any

from rich.table import Table

from mpx.bench.show.tables import device_name, rate, say_alone, say_peaks
from mpx.render.run_tables import console, number

WHY = "why –"  # header of the column that says why a figure is missing


def show(about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """about: device, exclusive and environment; rows: those of mpx.bench.kernels.formats."""
    out = console()
    out.print(_card(rows))
    for row in rows:
        if row["note"]:
            out.print(f"{row['format']}: {row['note']}", highlight=False)
    out.print(_rates(about, rows))
    out.print(
        "Random operands; int8 in TOP/s; error: ‖out − ref‖ ÷ ‖ref‖, ref being the same product in float64 (for fp64 itself).",
        highlight=False,
    )
    say_peaks(out, about)
    say_alone(out, about)


def pictures(about: dict[str, Any], rows: list[dict[str, Any]]) -> list:
    """The measured rates beside the vendor's."""
    from mpx.render.plots.grouped import grouped_bars
    from mpx.render.plots.picture import picture

    ways = {"measured here": "tflops_per_s", "vendor's dense peak": "peak_tflops_per_s"}
    bars = {row["format"]: {way: row[key] for way, key in ways.items() if row[key]} for row in rows}
    draw = lambda: grouped_bars(bars, "TFLOP/s (int8: TOP/s)")  # noqa: E731
    return [picture("formats", "Square matrix products", device_name(about), "By number format.", draw)]


def _card(rows: list[dict[str, Any]]) -> Table:
    heads = ("bits", "exponent", "mantissa", "epsilon", "smallest normal", "smallest subnormal", "largest", "digits")
    specs = ("d", "d", "d", ".4g", ".4g", ".4g", ".5g", ".1f")
    names = (
        "bits", "exponent_bits", "mantissa_bits", "epsilon", "smallest_normal", "smallest_subnormal", "largest", "significant_digits",
    )  # fmt: skip
    table = _table("What each format can hold", "format", *heads)
    for row in rows:
        table.add_row(row["format"], *(number(row[name], spec) for name, spec in zip(names, specs, strict=True)))
    return table


def _rates(about: dict[str, Any], rows: list[dict[str, Any]]) -> Table:
    title = f"Square matrix products on {device_name(about)}"
    table = _table(title, "format", "size", "TFLOP/s", "vendor peak", "of peak", "error", WHY)
    for row in rows:
        why = row["tflops_per_s_reason"] or row["peak_tflops_per_s_reason"] or ""
        table.add_row(
            row["format"], number(row["size"], "d"), rate(row["tflops_per_s"]), rate(row["peak_tflops_per_s"]),
            number(row["share_of_peak"], ".0%"), number(row["relative_error"], ".1e"), why,
        )  # fmt: skip
    return table


def _table(title: str, *columns: str) -> Table:
    """Numbers to the right; the format and the last column of the rates, which is text, to the left."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in ("format", WHY) else "right", overflow="fold")
    return table
