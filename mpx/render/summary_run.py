"""A study's TensorBoard run `_report`: tables as text, plots as images. Below it, one run per setting has the bands of its seeds.

Each setting has its own run because TensorBoard colours curves by run. These runs have no hyperparameters, so that they add no rows to the
HPARAMS table. The layout of `_report` adds a category of bands to the CUSTOM SCALARS dashboard of the study's runs. All files are rewritten
each time. Nothing here needs torch.
Source: tensorboard/compat/proto/summary.proto, tensorboard/plugins/custom_scalar/layout.proto.
"""

import hashlib
import io
import re
import shutil
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from mpx.compare.comparison import Comparison, Group
from mpx.compare.curves import spaced
from mpx.compare.served import by_way, places
from mpx.compare.words import title
from mpx.render.comparison_tables import SERVED, growth_table
from mpx.render.markdown import about, group_table, served_part, verdicts
from mpx.render.plots.bands import LOSSES, NUMERICS, Bands
from mpx.render.plots.draw import file_start
from mpx.render.plots.picture import Picture
from mpx.render.table import escaped, in_markdown
from mpx.whole_file import own_folder, write_whole

FOLDER = "_report"
POINTS = 100  # points per band
MAX_FOLDER_NAME = 100  # characters, without the hash

Written = tuple[int, Summary.Value]  # step, value


def write_summary_run(
    comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Bands], growth: Picture | None
) -> list[Path]:
    """Write the event files and return them, `_report`'s first. drawn, curves: the pictures and curves of each group.

    growth: the picture of speed-ups by batch size.
    """
    report = comparison.folder / FOLDER
    bands: dict[str, list[Written]] = defaultdict(list)
    for group, found in zip(comparison.groups, curves, strict=True):
        for setting, scalars in (*_bands(file_start(group), found), *_served(group)):
            bands[folder_name(setting)] += scalars
    written = [_write(report, [*_values(comparison, drawn, curves), *_growth(comparison, growth)])]
    written += [_write(report / name, scalars) for name, scalars in bands.items()]
    for old in report.iterdir():
        if old.is_dir() and old.name not in bands:
            shutil.rmtree(old, ignore_errors=True)
    return written


def _write(folder: Path, values: Iterable[Written]) -> Path:
    """Write one event file that replaces the existing ones."""
    own_folder(folder)
    now, content = time.time(), io.BytesIO()
    writer = RecordWriter(content)
    writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
    for step, value in values:
        writer.write(Event(wall_time=now, step=step, summary=Summary(value=[value])).SerializeToString())
    path = folder / f"events.out.tfevents.{time.time_ns()}.mpx"  # a running TensorBoard only reads a new file from its start
    write_whole(path, content.getvalue())
    for old in folder.glob("events.out.tfevents.*"):
        if old.name < path.name:  # a concurrent comparison may have written a newer file
            old.unlink(missing_ok=True)
    return path


def folder_name(setting: str) -> str:
    """The unique folder of a setting's run below `_report`: the setting without characters that paths cannot have."""
    name = re.sub(r"[^\w.=+ -]+", "_", setting, flags=re.ASCII)[:MAX_FOLDER_NAME]
    return name if name == setting else f"{name}-{hashlib.sha256(setting.encode()).hexdigest()[:8]}"


def _values(comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Bands]) -> Iterator[Written]:
    """The contents of the run `_report`."""
    yield 0, _text("verdict", verdicts(comparison))
    layout = layout_pb2.Layout()
    for group, pictures, found in zip(comparison.groups, drawn, curves, strict=True):
        start = file_start(group)
        yield 0, _text(f"table/{start}", f"{about(group, comparison)}\n\n{group_table(group)}")
        if served := served_part(group):
            yield 0, _text(f"served/{start}", served)
        for one in pictures:
            if one.png is not None:
                yield 0, _image(f"{start}/{one.name.removeprefix(start + '-')}", one)
        _add_charts(layout.category.add(title=f"Seeds of {title(group)}"), start, found)
    if comparison.left_out:
        yield 0, _text("left_out", "\n".join(f"- {escaped(folder)}: {escaped(reason)}" for folder, reason in comparison.left_out))
    metadata = SummaryMetadata.FromString(custom_scalar.create_summary_metadata().SerializeToString())
    tensor = make_tensor_proto(layout.SerializeToString(), dtype=np.object_)
    yield 0, Summary.Value(tag=custom_scalar.CONFIG_SUMMARY_TAG, metadata=metadata, tensor=tensor)


def _growth(comparison: Comparison, growth: Picture | None) -> Iterator[Written]:
    if growth is not None:
        yield 0, _text("table/speedup_by_batch_size", in_markdown(growth_table("", comparison, {})))
        yield 0, _image("speedup_by_batch_size", growth)


def _text(tag: str, markdown: str) -> Summary.Value:
    metadata = text_plugin.create_summary_metadata(display_name=tag, description="")
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(markdown.encode(), dtype=np.object_))


def _image(tag: str, one: Picture) -> Summary.Value:
    width, height = struct.unpack(">II", one.png[16:24])  # of the PNG's first chunk, IHDR
    return Summary.Value(tag=tag, image=Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=one.png))


def _bands(start: str, found: Bands) -> Iterator[tuple[str, list[Written]]]:
    """(setting, scalars of one band)."""
    for tag, settings in found.items():
        for setting, band in settings.items():
            kept = spaced(len(band.steps), POINTS)
            yield (
                setting,
                [
                    (int(band.steps[i]), Summary.Value(tag=f"{start}/{tag}/{part}", simple_value=float(getattr(band, part)[i])))
                    for part in ("mean", "low", "high")
                    for i in kept
                ],
            )


def _served(group: Group) -> Iterator[tuple[str, list[Written]]]:
    """(setting, the figures of one way to serve it), as points that lie side by side for all settings."""
    for place, name in places(group).items():
        for row, found in by_way(group, place):
            for way, serving in found.items():
                words = f"{way.words}, {way.backend}, batch {place.smallest} to {place.largest}, {name}"
                start = f"{file_start(group)}/served/{_in_tag(words)}"
                by = f"_{_in_tag(serving.latency_by)}" if serving.latency_by else ""
                figures = {f"{name}{by if name.startswith('latency') else ''}": getattr(serving, name) for name in ("metric", *SERVED)}
                yield (
                    row.setting,
                    [(0, Summary.Value(tag=f"{start}/{name}", simple_value=value.mean)) for name, value in figures.items() if value],
                )


def _in_tag(words: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "_", words)


def _add_charts(category: layout_pb2.Category, start: str, found: Bands) -> None:
    """Add one chart per tag, in which each setting's run draws a line with its band as margin.

    The chart has a single series, because TensorBoard then skips the runs that lack it. With several series it would show errors for them.
    """
    for tag, name in (LOSSES | NUMERICS).items():
        if found.get(tag):
            value, lower, upper = (f"{start}/{tag}/{part}" for part in ("mean", "low", "high"))
            series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
            category.chart.add(title=name, margin=layout_pb2.MarginChartContent(series=[series]))
