"""The run `_report` of a study, for TensorBoard: tables as text, plots as images; below it a run per setting with the bands of its seeds.

TensorBoard gives each run a colour, so that settings within one run could not be told apart. None has hyperparameters, so none is a row of
the HPARAMS table; the layout of `_report` adds a category of bands to the dashboard CUSTOM SCALARS that the runs themselves bring. All are
written afresh each time. Nothing here needs torch.
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
from mpx.render.markdown import about, escaped, growth_table, settings_table, verdicts
from mpx.render.plots.bands import LOSSES, NUMERICS
from mpx.render.plots.draw import file_start
from mpx.render.plots.picture import Picture
from mpx.whole_file import write_whole

FOLDER = "_report"
POINTS = 100  # of a band
LONGEST = 100  # characters of a folder's name, without its hash

Curves = Mapping[str, Mapping[str, Band]]  # tag -> setting -> band
Written = tuple[int, Summary.Value]  # step, value


def write_summary_run(
    comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Curves], growth: Picture | None
) -> list[Path]:
    """drawn, curves: of each group. growth: the picture of all groups by batch size. Returns the event files, that of `_report` first."""
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
    """One event file, in place of those that are there."""
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
    name = re.sub(r"[^\w.=+ -]+", "_", setting, flags=re.ASCII)[:LONGEST]
    return name if name == setting else f"{name}-{hashlib.sha256(setting.encode()).hexdigest()[:8]}"


def _values(comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Curves]) -> Iterator[Written]:
    """All that the run `_report` itself holds."""
    yield 0, _text("verdict", verdicts(comparison))
    layout = layout_pb2.Layout()
    for group, pictures, found in zip(comparison.groups, drawn, curves, strict=True):
        start = file_start(group)
        yield 0, _text(f"table/{start}", f"{about(group, comparison)}\n\n{settings_table(group)}")
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
        yield 0, _text("table/speedup_by_batch_size", growth_table(comparison))
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

    Of a chart with a single series TensorBoard knows that runs without it are none of its business; of more it would list them as errors.
    """
    for tag, name in (LOSSES | NUMERICS).items():
        if found.get(tag):
            value, lower, upper = (f"{start}/{tag}/{part}" for part in ("mean", "low", "high"))
            series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
            category.chart.add(title=name, margin=layout_pb2.MarginChartContent(series=[series]))
