"""The run `_report` of a study, for TensorBoard: the tables as text, the plots as images, the seeds' curves as bands.

Written afresh each time. It has no hyperparameters, so it is no row of the HPARAMS table; its layout adds a category of bands to the
dashboard CUSTOM SCALARS that the runs themselves bring. Nothing here needs torch.
Source: tensorboard/compat/proto/summary.proto, tensorboard/plugins/custom_scalar/layout.proto.
"""

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.util.tensor_util import make_tensor_proto

from mpx.report.comparison import Comparison
from mpx.report.curves import Band, spaced
from mpx.report.markdown import about, escaped, growth_table, settings_table, verdicts
from mpx.report.plots.bands import LOSSES, NUMERICS
from mpx.report.plots.draw import file_start
from mpx.report.plots.picture import Picture
from mpx.report.tfrecords import records
from mpx.report.words import title
from mpx.whole_file import write_whole

FOLDER = "_report"
POINTS = 100  # of a band

Curves = Mapping[str, Mapping[str, Band]]  # tag -> setting -> band


def write_summary_run(comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Curves], growth: Picture | None) -> Path:
    """drawn, curves: of each group. growth: the picture of all groups by batch size. Returns the event file."""
    folder = comparison.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    events = [Event(wall_time=now, file_version="brain.Event:2").SerializeToString()]
    for step, value in [*_values(comparison, drawn, curves), *_growth(comparison, growth)]:
        events.append(Event(wall_time=now, step=step, summary=Summary(value=[value])).SerializeToString())
    path = folder / f"events.out.tfevents.{time.time_ns()}.mpx"  # a new name, or a running TensorBoard would read on in the old file
    write_whole(path, records(events))
    for old in folder.glob("events.out.tfevents.*"):
        if old.name < path.name:  # another comparison at the same time may have written a newer one
            old.unlink(missing_ok=True)
    return path


def _values(comparison: Comparison, drawn: Sequence[Sequence[Picture]], curves: Sequence[Curves]) -> Iterator[tuple[int, Summary.Value]]:
    """(step, value) of all that the run holds."""
    yield 0, _text("verdict", verdicts(comparison))
    layout = layout_pb2.Layout()
    for group, pictures, found in zip(comparison.groups, drawn, curves, strict=True):
        start = file_start(group)
        yield 0, _text(f"table/{start}", f"{about(group, comparison)}\n\n{settings_table(group)}")
        for one in pictures:
            if one.png is not None:
                yield 0, _image(f"{start}/{one.name.removeprefix(start + '-')}", one)
        yield from _bands(start, found)
        _add_charts(layout.category.add(title=f"Seeds of {title(group)}"), start, found)
    if comparison.left_out:
        yield 0, _text("left_out", "\n".join(f"- {escaped(folder)}: {escaped(reason)}" for folder, reason in comparison.left_out))
    metadata = SummaryMetadata.FromString(custom_scalar.create_summary_metadata().SerializeToString())
    tensor = make_tensor_proto(layout.SerializeToString(), dtype=np.object_)
    yield 0, Summary.Value(tag=custom_scalar.CONFIG_SUMMARY_TAG, metadata=metadata, tensor=tensor)


def _growth(comparison: Comparison, growth: Picture | None) -> Iterator[tuple[int, Summary.Value]]:
    if growth is not None:
        yield 0, _text("table/speedup_by_batch_size", growth_table(comparison))
        yield 0, _image("speedup_by_batch_size", growth)


def _text(tag: str, markdown: str) -> Summary.Value:
    metadata = text_plugin.create_summary_metadata(display_name=tag, description="")
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(markdown.encode(), dtype=np.object_))


def _image(tag: str, one: Picture) -> Summary.Value:
    width, height = struct.unpack(">II", one.png[16:24])  # of the PNG's first chunk, IHDR
    return Summary.Value(tag=tag, image=Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=one.png))


def _bands(start: str, found: Curves) -> Iterator[tuple[int, Summary.Value]]:
    for tag, settings in found.items():
        for setting, band in settings.items():
            kept = spaced(len(band.steps), POINTS)
            for part in ("mean", "low", "high"):
                name, values = _tag(start, tag, setting, part), getattr(band, part)
                for i in kept:
                    yield int(band.steps[i]), Summary.Value(tag=name, simple_value=float(values[i]))


def _tag(start: str, tag: str, setting: str, part: str) -> str:
    return f"{start}/{tag}/{setting}/{part}"


def _add_charts(category: layout_pb2.Category, start: str, found: Curves) -> None:
    """One chart per tag; a line per setting, with its band as margin."""
    for tag, name in (LOSSES | NUMERICS).items():
        settings = found.get(tag, {})
        if not settings:
            continue
        margin = layout_pb2.MarginChartContent(
            series=[
                layout_pb2.MarginChartContent.Series(
                    value=_tag(start, tag, setting, "mean"), lower=_tag(start, tag, setting, "low"), upper=_tag(start, tag, setting, "high")
                )
                for setting in settings
            ]
        )
        category.chart.add(title=name, margin=margin)
