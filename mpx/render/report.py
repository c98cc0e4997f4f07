"""Write a comparison into the study's folder: report.html, report.md, plots/ and the TensorBoard run
`_report`.

`_report` has the Markdown of the tables as text and the plots as images. It has no hyperparameters, so that
it adds no row to the HPARAMS table.
"""

import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from mpx.compare import words
from mpx.compare.comparison import Comparison, Group
from mpx.render.comparison_tables import served_tables, settings_table
from mpx.render.figures import file_start, pictures
from mpx.render.html import html_report
from mpx.render.picture import Picture, save, styles
from mpx.render.table import escaped, in_markdown
from mpx.system.printing import track
from mpx.system.whole_file import whole_folder, write_whole

HTML, MARKDOWN = PAGES = ("report.html", "report.md")
SUMMARY = "_report"
PLOTS = "plots"  # folder of the pictures


def write(comparison: Comparison) -> None:
    """Write the report.

    Everything is drawn before the first file is written, and each is replaced as a whole, so a failure leaves
    the old files.
    """
    # groups with nothing to compare last
    ordered = sorted(comparison.groups, key=lambda group: all(row.decision is None for row in group.rows))
    comparison = replace(comparison, groups=tuple(ordered))
    by_setting = styles(comparison)
    groups = track(comparison.groups, "drawing", len(comparison.groups))
    drawn = [pictures(group, comparison, by_setting) for group in groups]
    html, markdown = comparison.folder / HTML, comparison.folder / MARKDOWN
    pages = {html: html_report(comparison, drawn, by_setting), markdown: markdown_report(comparison, drawn)}
    for one in itertools.chain(*drawn):
        save(one, comparison.folder / PLOTS)
    for path, text in pages.items():
        write_whole(path, text)
    write_summary_run(comparison, drawn)


def write_summary_run(comparison: Comparison, drawn: Sequence[Sequence[Picture]]) -> None:
    """drawn: the pictures of each group."""
    from torch.utils.tensorboard import SummaryWriter  # torch, which nothing else of a comparison needs

    with whole_folder(comparison.folder / SUMMARY) as folder, SummaryWriter(str(folder)) as writer:
        for tag, text in _texts(comparison):
            writer.add_text(tag, text)
        for tag, png in _images(comparison, drawn):
            writer.add_image(tag, np.asarray(Image.open(io.BytesIO(png))), dataformats="HWC")


def _texts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "verdict", verdicts(comparison)
    for group in comparison.groups:
        start = file_start(group)
        yield f"table/{start}", f"{about(group, comparison)}\n\n{group_table(group)}"
        if served := served_part(group):
            yield f"served/{start}", served
    if comparison.left_out:
        yield (
            "left_out",
            "\n".join(f"- {escaped(folder)}: {escaped(reason)}" for folder, reason in comparison.left_out),
        )


def _images(comparison: Comparison, drawn: Sequence[Sequence[Picture]]) -> Iterator[tuple[str, bytes]]:
    for group, pictures_of_group in zip(comparison.groups, drawn, strict=True):
        start = file_start(group)
        for one in pictures_of_group:
            yield f"{start}/{one.name.removeprefix(start + '-')}", one.png


def markdown_report(comparison: Comparison, drawn: Sequence[Sequence[Picture]]) -> str:
    """drawn: the pictures of each group."""
    parts = [
        f"# {escaped(words.question(comparison))}",
        verdicts(comparison),
    ]
    for group, of_group in zip(comparison.groups, drawn, strict=True):
        parts += [
            f"## {escaped(words.title(group))}",
            about(group, comparison),
            group_table(group),
            served_part(group),
            figures(of_group),
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
