"""The run `_report` of a study, for TensorBoard: tables as text, plots as images. Below it, a run per setting has the bands of its seeds.

TensorBoard gives each run a colour, so settings within one run could not be told apart. No run here has hyperparameters, so none is a row
of the HPARAMS table. The layout of `_report` adds a category of bands to the dashboard CUSTOM SCALARS that the study's runs bring. All
files are written anew each time. Nothing here needs torch.
Source: tensorboard/compat/proto/summary.proto, tensorboard/plugins/custom_scalar/layout.proto.
"""

import hashlib
import io
import re
import shutil
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from mpx.compare.comparison import Comparison
from mpx.compare.curves import Band, spaced
from mpx.compare.words import title
from mpx.render.comparison_tables import growth_table
from mpx.render.markdown import about, group_table, verdicts
from mpx.render.plots.bands import LOSSES, NUMERICS
from mpx.render.plots.draw import file_start
from mpx.render.plots.picture import Picture
from mpx.render.table import escaped, in_markdown
from mpx.whole_file import write_whole

FOLDER = "_report"
POINTS = 100  # of a band
LONGEST_FOLDER = 100  # characters, without the hash

Curves = Mapping[str, Mapping[str, Band]]  # tag -> setting -> band
Written = tuple[int, Summary.Value]  # step, value


def write_summary_run(
    comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Curves], growth: Picture | None
) -> list[Path]:
    """drawn, curves: those of each group. growth: the picture of all groups by batch size. Returns the event files, first `_report`'s."""
    report = comparison.folder / FOLDER
    bands: dict[str, list[Written]] = defaultdict(list)
    for group, found in zip(comparison.groups, curves, strict=True):
        for setting, scalars in _bands(file_start(group), found):
            bands[folder_name(setting)] += scalars
    written = [_write(report, [*_values(comparison, drawn, curves), *_growth(comparison, growth)])]
    written += [_write(report / name, scalars) for name, scalars in bands.items()]
    for old in report.iterdir():
        if old.is_dir() and old.name not in bands:
            shutil.rmtree(old, ignore_errors=True)
    return written


def _write(folder: Path, values: Iterable[Written]) -> Path:
    """One event file, which replaces those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    now, content = time.time(), io.BytesIO()
    writer = RecordWriter(content)
    writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
    for step, value in values:
        writer.write(Event(wall_time=now, step=step, summary=Summary(value=[value])).SerializeToString())
    path = folder / f"events.out.tfevents.{time.time_ns()}.mpx"  # a new name, or a running TensorBoard would read on in the old file
    write_whole(path, content.getvalue())
    for old in folder.glob("events.out.tfevents.*"):
        if old.name < path.name:  # another comparison at the same time may have written a newer one
            old.unlink(missing_ok=True)
    return path


def folder_name(setting: str) -> str:
    """Of a setting's run below `_report`: the setting itself, but for characters that a path cannot have; no two settings share one."""
    name = re.sub(r"[^\w.=+ -]+", "_", setting, flags=re.ASCII)[:LONGEST_FOLDER]
    return name if name == setting else f"{name}-{hashlib.sha256(setting.encode()).hexdigest()[:8]}"


def _values(comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Curves]) -> Iterator[Written]:
    """All that the run `_report` itself holds."""
    yield 0, _text("verdict", verdicts(comparison))
    layout = layout_pb2.Layout()
    for group, pictures, found in zip(comparison.groups, drawn, curves, strict=True):
        start = file_start(group)
        yield 0, _text(f"table/{start}", f"{about(group, comparison)}\n\n{group_table(group)}")
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


def _bands(start: str, found: Curves) -> Iterator[tuple[str, list[Written]]]:
    """(setting, its scalars)."""
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


def _add_charts(category: layout_pb2.Category, start: str, found: Curves) -> None:
    """One chart per tag; each setting's run draws a line in it, with its band as margin.

    TensorBoard skips the runs that lack the series of a chart with one series. With several series it would list those runs as errors.
    """
    for tag, name in (LOSSES | NUMERICS).items():
        if found.get(tag):
            value, lower, upper = (f"{start}/{tag}/{part}" for part in ("mean", "low", "high"))
            series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
            category.chart.add(title=name, margin=layout_pb2.MarginChartContent(series=[series]))
