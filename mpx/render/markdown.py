"""report.md: verdicts, tables and linked plots, for a README or a pull request."""

from collections.abc import Sequence

from mpx.compare import words
from mpx.compare.comparison import Comparison, Group
from mpx.render.comparison_tables import served_tables, settings_table
from mpx.render.picture import Picture
from mpx.render.table import escaped, in_markdown

PLOTS = "plots"  # folder of the pictures, beside report.md


def markdown_report(comparison: Comparison, drawn: Sequence[Sequence[Picture]]) -> str:
    """drawn: the pictures of each group."""
    parts = [
        f"# {escaped(question(comparison))}",
        verdicts(comparison),
    ]
    for group, pictures in zip(comparison.groups, drawn, strict=True):
        parts += [
            f"## {escaped(words.title(group))}",
            about(group, comparison),
            group_table(group),
            served_part(group),
            figures(pictures),
        ]
    if comparison.left_out:
        lines = (
            f"- `{folder.replace('`', chr(39))}`: {escaped(reason)}" for folder, reason in comparison.left_out
        )
        parts += [f"## Left out ({len(comparison.left_out)})", "\n".join(lines)]
    if comparison.commands:
        parts += ["## To repeat it", "```bash\n" + "\n".join(comparison.commands) + "\n```"]
    if environment := words.environment_rows(comparison.runs):
        parts += [
            "## Environment",
            "\n".join(f"- {escaped(key)}: {escaped(value)}" for key, value in environment),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def question(comparison: Comparison) -> str:
    """The title of a report."""
    metrics = {group.metric.words for group in comparison.groups}
    what = words.title(comparison.groups[0]) if len(comparison.groups) == 1 else "each model"
    how = f"with no worse {metrics.pop()}" if len(metrics) == 1 else "at no loss"
    return f"Which setting trains {what} fastest {how}?"


def verdicts(comparison: Comparison) -> str:
    blocks = []
    for group in comparison.groups:
        name = f"{escaped(words.title(group))}: " if len(comparison.groups) > 1 else ""
        more = " ".join(filter(None, (group.evidence, group.time_verdict, group.serve_verdict)))
        blocks.append(f"**{name}{escaped(group.train_verdict)}** {escaped(more)}".rstrip())
    return "\n\n".join(blocks)


def about(group: Group, comparison: Comparison) -> str:
    """How the table compares."""
    return (
        f"Compared by {escaped(group.metric.words)}, margin {words.margin(group, comparison)}, "
        f"{words.confidence(comparison)}."
    )


def group_table(group: Group) -> str:
    """The table of the settings, and the notes below it."""
    table, notes = in_markdown(settings_table(group, {})), [f"- {escaped(note)}" for note in group.notes]
    return "\n\n".join([table, "\n".join(notes)] if notes else [table])


def served_part(group: Group) -> str:
    """How the settings were served; empty if none was."""
    return "\n\n".join(
        f"{escaped(table.title)}:\n\n{in_markdown(table)}" for table in served_tables(group, {})
    )


def figures(drawn: Sequence[Picture]) -> str:
    """Links to the pictures."""
    return "\n\n".join(
        f"![{escaped(one.title)}: {escaped(one.of)}]({PLOTS}/{one.name}.png)\n\n{escaped(one.caption)}"
        for one in drawn
    )
