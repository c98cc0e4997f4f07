"""A comparison in a notebook: of each group the sentences, the table of settings and the pictures."""

import base64
import io
from html import escape

from PIL import Image

from mpx.compare.comparison import Comparison, Group
from mpx.compare.words import title
from mpx.render.colours import Styles, styles
from mpx.render.comparison_tables import settings_table
from mpx.render.figures import pictures
from mpx.render.picture import Picture
from mpx.render.table import Table, text_of

COLOURS = 64  # of a picture's palette


def in_notebook(comparison: Comparison) -> str:
    """HTML that needs no style sheet, with the pictures inside it."""
    by_setting = styles(comparison)
    return "\n".join(_group(group, comparison, by_setting) for group in comparison.groups)


def _group(group: Group, comparison: Comparison, by_setting: Styles) -> str:
    sentences = filter(None, (group.evidence, group.time_verdict, group.serve_verdict))
    parts = [f"<h4>{escape(title(group))}</h4>", f"<p><b>{escape(group.train_verdict)}</b></p>"]
    parts += [f"<p>{escape(sentence)}</p>" for sentence in sentences]
    parts.append(_table(settings_table(group, by_setting)))
    parts += [f"<p><small>{escape(note)}</small></p>" for note in group.notes]
    parts += [_image(one) for one in pictures(group, comparison, by_setting)]
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column.head)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{escape(text_of(cell))}</td>" for cell in row) for row in table.rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _image(one: Picture) -> str:
    data = base64.b64encode(_small(one.png)).decode()
    return f'<img alt="{escape(one.title)}" style="max-width: 100%" src="data:image/png;base64,{data}">'


def _small(png: bytes) -> bytes:
    """With a palette: a saved notebook keeps a third of the bytes."""
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS).save(small, "png", optimize=True)
    return small.getvalue()
