"""report.md: verdicts, tables and the plots as links, for a README or a pull request."""

from collections.abc import Sequence
from html import escape

from mpx.compare import words
from mpx.compare.batch_scaling import growths, sizes
from mpx.compare.comparison import METRICS, Comparison, Group, Row
from mpx.render.plots.picture import Picture

PLOTS = "plots"  # folder of the pictures, beside report.md


def markdown_report(comparison: Comparison, drawn: Sequence[Sequence[Picture]], growth: Picture | None) -> str:
    """drawn: the pictures of each group. growth: that of all groups by batch size."""
    parts = [f"# {escaped(comparison.study)}", verdicts(comparison), growth_part(comparison, growth, "##")]
    for group, found in zip(comparison.groups, drawn, strict=True):
        parts += [f"## {escaped(words.title(group))}", about(group, comparison), settings_table(group), figures(found)]
    if comparison.left_out:
        lines = (f"- `{_code(folder)}`: {escaped(reason)}" for folder, reason in comparison.left_out)
        parts += [f"## Left out ({len(comparison.left_out)})", "\n".join(lines)]
    if comparison.commands:
        parts += ["## To repeat it", "```bash\n" + "\n".join(comparison.commands) + "\n```"]
    if environment := words.environment_rows(words.all_runs(comparison)):
        parts += ["## Environment", "\n".join(f"- {escaped(key)}: {escaped(value)}" for key, value in environment)]
    return "\n\n".join(part for part in parts if part) + "\n"


def verdicts(comparison: Comparison) -> str:
    blocks = []
    for group in comparison.groups:
        name = f"{escaped(words.title(group))}: " if len(comparison.groups) > 1 else ""
        blocks.append(f"**{name}{escaped(group.train_verdict)}** {escaped(group.serve_verdict)}".rstrip())
    return "\n\n".join(blocks)


def growth_part(comparison: Comparison, growth: Picture | None, heading: str) -> str:
    """Speed-ups by batch size, as a table and a picture; empty where none ran at several."""
    if growth is None:
        return ""
    return f"{heading} {growth.title}\n\n{growth_table(comparison)}\n\n{figures([growth])}"


def growth_table(comparison: Comparison) -> str:
    lines = growths(comparison)
    columns = sizes(lines)
    rows = [["", "setting", *(f"batch {size:,}" for size in columns)], ["---", "---", *(["---:"] * len(columns))]]
    rows += [[escaped(line.of), escaped(line.setting), *(words.speedup(line.speedups.get(size)) for size in columns)] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def about(group: Group, comparison: Comparison) -> str:
    """What the table compares by, and what the reader must know."""
    margin, confidence = words.margin(group, comparison), f"{comparison.confidence * 100:g} % confidence"
    first = f"Compared by {METRICS[group.metric].words}, margin {margin}, {confidence}."
    notes = "\n".join(f"- {escaped(note)}" for note in group.notes)
    return f"{first}\n\n{notes}" if notes else first


def settings_table(group: Group) -> str:
    """One row per setting; columns in which nothing is known are left out."""
    heads = (
        "setting", "seeds", METRICS[group.metric].words, "difference", "decision", "training samples/s", "speed-up", "peak GiB",
        "time to train, s", "skipped steps", "gradients that vanish", "density", "served samples/s",
    )  # fmt: skip
    rows = [_row(row, group) for row in group.rows]
    kept = [i for i in range(len(heads)) if i < 3 or any(row[i] != words.UNKNOWN for row in rows)]
    lines = [[heads[i] for i in kept], ["---" if i in (0, 4) else "---:" for i in kept], *([row[i] for i in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(row: Row, group: Group) -> tuple[str, ...]:
    spec = words.metric_spec(group.metric)
    control = row.setting == group.control
    return (
        escaped(row.setting), str(len(row.runs)) + (f", {row.diverged} diverged" if row.diverged else ""), words.spread(row.metric, spec),
        words.difference(row.decision, spec), "control" if control else escaped(words.decided(row.decision)), words.rate(row),
        words.speedup(row.speedup), words.spread(row.peak_gib, ".2f"), words.spread(row.time_to_train_s, ",.1f"),
        words.spread(row.skipped_steps, ",.1f"), words.spread(row.underflow, ".3%"),
        words.spread(row.density, ".3f"), words.spread(row.serve),
    )  # fmt: skip


def figures(drawn: Sequence[Picture], *, reasons: bool = True) -> str:
    """Links to the pictures; reasons: also say what was not drawn and why."""
    found = [
        f"![{escaped(one.title)}: {escaped(one.of)}]({PLOTS}/{one.name}.png)\n\n{escaped(one.caption)}"
        for one in drawn
        if one.png is not None
    ]
    missing = [f"- {escaped(one.title)}: {escaped(one.reason)}." for one in drawn if one.png is None]
    return "\n\n".join(found + (["Not drawn:", "\n".join(missing)] if missing and reasons else []))


def escaped(text: str) -> str:
    """Markdown's own signs, and HTML's, taken literally."""
    for sign in "\\`*_[]|#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(escape(text, quote=False).split())


def _code(text: str) -> str:
    return text.replace("`", "'")
