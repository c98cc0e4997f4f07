"""The parts that the page is made of, as HTML. A figure is shown rounded and carries its full value, that of results.csv."""

from collections.abc import Iterable, Sequence
from html import escape

from mpx.compare.comparison import Decision, Estimate, Speedup
from mpx.compare.words import UNKNOWN, decided, metric_spec, plain, rate_spec, signed
from mpx.render.plots.looks import INK, Look

SHAPES = {  # the markers of the plots, in a square of 12 × 12
    "o": "M6 1a5 5 0 1 0 .01 0z", "s": "M1.5 1.5h9v9h-9z", "^": "M6 1l5 10H1z", "D": "M6 .5L11.5 6 6 11.5.5 6z", "v": "M6 11L1 1h10z",
    "P": "M4 1h4v3h3v4H8v3H4V8H1V4h3z", "X": "M3.5 1L6 3.5 8.5 1 11 3.5 8.5 6 11 8.5 8.5 11 6 8.5 3.5 11 1 8.5 3.5 6 1 3.5z",
}  # fmt: skip
BADGES = {"no loss": ("good", "✓"), "loss": ("bad", "✗")}


def figure(value: float | int | None, spec: str, *, sign: bool = False, unit: str = "") -> str:
    """`<data value="0.98765…" title="0.98765…">0.9877</data>`."""
    if value is None or (text := signed(value, spec) if sign else plain(value, spec)) == UNKNOWN:
        return UNKNOWN
    return f'<data value="{value!r}" title="{value!r}">{text}{unit}</data>'


def estimate(found: Estimate | None, spec: str | None = None) -> str:
    """The mean, and below it the spread where there is any that would not read as zero."""
    if found is None:
        return UNKNOWN
    spec = spec or rate_spec(found.mean)
    shown = found.std is not None and plain(found.std, spec).strip("0.,%")
    return figure(found.mean, spec) + (f"<small>± {figure(found.std, spec)}</small>" if shown else "")


def difference(found: Decision | None, metric: str) -> str:
    if found is None:
        return UNKNOWN
    spec = metric_spec(metric)
    return figure(found.difference, spec, sign=True) + _bounds(found.low, found.high, spec, sign=True)


def speedup(found: Speedup | None) -> str:
    return UNKNOWN if found is None else figure(found.ratio, ".2f", unit="×") + _bounds(found.low, found.high, ".2f")


def _bounds(low: float | None, high: float | None, spec: str, *, sign: bool = False) -> str:
    return "" if low is None else f"<small>{figure(low, spec, sign=sign)} to {figure(high, spec, sign=sign)}</small>"


def decision(found: Decision | None, *, control: bool) -> str:
    """A badge, with words and a sign beside its colour, and what the decision rests on."""
    if found is None:
        return "control" if control else UNKNOWN
    kind, glyph = BADGES.get(found.verdict, ("open", "?"))
    shown = found.verdict if kind != "open" else "not enough seeds"
    rest = decided(found).removeprefix(found.verdict).removeprefix(", ")
    p = found.p_decided
    test = f'<span class="whole">{escape(found.method)}, p = {figure(p, ".2g")}</span>' if p is not None else ""
    lines = "".join(f"<small>{line}</small>" for line in (escape(rest), test) if line)
    return f'<span class="badge {kind}">{glyph} {shown}</span>{lines}'


def mark(look: Look | None) -> str:
    """The setting's sign in the plots."""
    if look is None:
        return ""
    colour = "var(--ink)" if look.colour == INK else look.colour
    path = f'<path d="{SHAPES[look.marker]}" fill="{colour}" stroke="var(--ink)" stroke-width=".7"/>'
    return f'<svg class="mark" viewBox="0 0 12 12" aria-hidden="true">{path}</svg>'


def setting(name: str, look: Look | None) -> str:
    """Its sign in the plots and its name; what it changes beyond precision and sparsity on lines of its own."""
    first, *changes = name.split(" ")
    return mark(look) + escape(first) + "".join(f"<small>{escape(change).replace('=', '=<wbr>')}</small>" for change in changes)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], label: str, texts: Sequence[int] = ()) -> str:
    """heads and cells: HTML; the first cell of a row names it. texts: columns of words, which are set left and may wrap.

    Columns in which nothing is known are left out.
    """
    rows = list(rows)
    known = [i for i in range(len(heads)) if i == 0 or any(row[i] != UNKNOWN for row in rows)]
    kind = ["" if i not in texts else ' class="text"' for i in known]
    heads, rows = [heads[i] for i in known], [[row[i] for i in known] for row in rows]
    head = "".join(f'<th scope="col"{kind[i]}>{text}</th>' for i, text in enumerate(heads))
    body = "\n".join(
        "<tr>" + "".join(f'<th scope="row">{cell}</th>' if i == 0 else f"<td{kind[i]}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
