"""A comparison as HTML: report.html, a single page without network access or scripts, has verdicts, tables,
plots, all runs, environment and commands; a notebook's cell has sentences, table and pictures.
"""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mpx.compare.comparison import Comparison, Group
from mpx.compare.words import confidence, environment_rows, margin, places, question, title
from mpx.render.comparison_tables import left_out_table, runs_table, served_tables, settings_table
from mpx.render.figures import file_start, pictures
from mpx.render.picture import INK, Picture, Styles, inline, styles
from mpx.render.table import Cell, Column
from mpx.system.printing import how_many

TEMPLATES = Path(__file__).with_name("templates")
FEW_RUNS = 60  # a longer list of runs starts collapsed
SHAPES = {  # the plots' markers as SVG paths in a 12 × 12 square
    "o": "M6 1a5 5 0 1 0 .01 0z", "s": "M1.5 1.5h9v9h-9z", "^": "M6 1l5 10H1z",
    "D": "M6 .5L11.5 6 6 11.5.5 6z", "v": "M6 11L1 1h10z",
    "P": "M4 1h4v3h3v4H8v3H4V8H1V4h3z",
    "X": "M3.5 1L6 3.5 8.5 1 11 3.5 8.5 6 11 8.5 8.5 11 6 8.5 3.5 11 1 8.5 3.5 6 1 3.5z",
}  # fmt: skip


def html_report(comparison: Comparison, drawn: Sequence[Sequence[Picture]], styles: Styles) -> str:
    """drawn: the pictures of each group."""
    return _template("report.html").render(
        study=comparison.study,
        question=question(comparison),
        about=_about(comparison),
        groups=[
            _group(group, comparison, pictures, styles)
            for group, pictures in zip(comparison.groups, drawn, strict=True)
        ],
        left_out=left_out_table(comparison),
        commands=comparison.commands,
        environment=environment_rows(comparison.runs),
        css=(TEMPLATES / "page.css").read_text(encoding="utf-8"),
        few_runs=FEW_RUNS,
        shapes=SHAPES,
        ink=INK,
    )


def _template(name: str):
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["inline"] = inline
    environment.filters["lines"] = lines
    environment.filters["base64"] = lambda png: base64.b64encode(png).decode()
    return environment.get_template(name)


def lines(cell: Cell, column: Column) -> list[str]:
    """The text of a cell: a figure, a setting or a decision, then what the page shows in small print below
    it.
    """
    if cell.badge:
        return cell.text.split(", ", 1)
    if cell.style and "=" in cell.text:  # a label has spaces, and no changes
        return cell.text.split(" ")
    return [cell.text] if column.words else re.split(r" (?=[±(])", cell.text)


def _group(group: Group, comparison: Comparison, drawn: Sequence[Picture], styles: Styles) -> dict[str, Any]:
    about = f"Compared by {group.metric.words}, with a margin of {margin(group, comparison)}. {places(group)}"
    return {
        "group": group,
        "title": title(group),
        "anchor": file_start(group),
        "about": about.strip(),
        "settings": settings_table(group, styles),
        "served": served_tables(group, styles),
        "pictures": drawn,
        "runs": runs_table(group, comparison.folder, styles),
    }


def _about(comparison: Comparison) -> str:
    runs, groups = comparison.runs, comparison.groups
    settings = sum(len(group.rows) for group in groups)
    devices = ", ".join(sorted({run.device for run in runs if run.device})) or "an unknown device"
    what = f"{how_many(len(runs), 'run')} of {how_many(settings, 'setting')}"
    return f"{what}. On {devices}; intervals and decisions at {confidence(comparison)}."


def in_notebook(comparison: Comparison) -> str:
    """HTML that needs no style sheet, with the pictures inside it."""
    by_setting = styles(comparison)
    parts = [
        {
            "group": group,
            "title": title(group),
            "settings": settings_table(group, by_setting),
            "pictures": pictures(group, comparison, by_setting),
        }
        for group in comparison.groups
    ]
    return _template("notebook.html").render(groups=parts)
