"""Write a run's hyperparameters, configuration, final values and dashboard layout to TensorBoard.

Each function takes a run's `torch.utils.tensorboard.SummaryWriter` (`TensorBoardLogger.experiment`). None
uses `SummaryWriter.add_hparams`, which starts a new run per call and turns booleans into 1.0. Source:
tensorboard/plugins/hparams/summary_v2.py, tensorboard/plugins/custom_scalar/layout.proto.

No run fixes the columns of the HPARAMS table. TensorBoard then takes the hyperparameters of all runs, first
those that differ between runs, and the scalars of all runs by name: of `final/…` those of a verdict, in the
order in which a reader asks for them. Source: tensorboard/plugins/hparams/backend_context.py.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.plugins.hparams.summary_v2 import hparams_pb

from mpx.runs.result import judged_by_record

CHARTS = {  # of CUSTOM SCALARS: category -> chart -> regular expression of its tags
    "Accuracy": {"loss": r"^(train|val|test)/loss$"},
    "Speed": {"training samples/s": r"^speed/train_samples_per_s$"},
    "Numerics": {
        "loss scale": r"^numerics/loss_scale$",
        "skipped steps": r"^numerics/skipped_steps$",
        "gradient underflow": r"^numerics/gradient_underflow\w*_fraction$",
    },
    "Memory": {"peak, GiB": r"^memory/peak_\w+_gib$"},
}


def write_first(
    writer, hparams: Mapping[str, Any], trial_id: str, config_yaml: str, environment: Mapping
) -> None:
    """Before training: the run's row of the HPARAMS table, and the configuration and the environment as text.

    Runs with the same `trial_id` (the setting without its seed) become one row of averages, in which the seed
    is no column. A second run of a seed, seed0-2, is in a row of its own, `trial_id (2)`, so that no seed
    counts twice in an average.
    """
    values = {
        key: value if type(value) in (int, float, str) else str(value)
        for key, value in hparams.items()
        if key != "seed"
    }
    again = re.fullmatch(r"seed\d+-(\d+)", Path(writer.get_logdir()).name)
    row = f"{trial_id} ({again[1]})" if again else trial_id
    writer.file_writer.add_summary(hparams_pb(values, trial_id=row))
    texts = {"config": config_yaml, "environment": json.dumps(dict(environment), indent=2, default=str)}
    for tag, text in texts.items():
        # a code block of Markdown
        writer.add_text(tag, "\n".join("    " + line for line in text.splitlines()))


def write_final(writer, record: Mapping[str, Any], step: int, tags: Iterable[str]) -> None:
    """Write the final values, and a layout of charts for what the run has logged. Call it once, at the end of
    a run. record: its result.json. tags: all that it has logged.
    """
    speed, memory, judged = record["speed"], record["memory"], judged_by_record(record).name
    final = {name.replace("/", "_"): record["metrics"].get(name) for name in (judged, "test/loss")}
    # the table sets a rate beside those of other formats, and an emulated one is not the format's
    final["train_samples_per_s"] = None if record["precision"]["emulated"] else speed["train_samples_per_s"]
    final["train_time_s"] = speed["time_to_train_s"]
    on_device = memory["peak_allocated_gib"]
    final["used_memory_gib"] = memory["peak_rss_gib"] if on_device is None else on_device
    for name, value in final.items():
        if value is not None:
            writer.add_scalar(f"final/{name}", value, step)
    writer.add_custom_scalars(_layout(judged, {*tags}))
    writer.flush()


def _layout(judged: str, tags: set[str]) -> dict[str, dict[str, list]]:
    """The charts of which the run has curves. judged: the metric's name in the record."""
    name = judged.rpartition("/")[2]
    accuracy = {name: rf"^(train|val|test)[/_]{re.escape(name)}$"} | CHARTS["Accuracy"]
    charts = {
        category: {
            chart: ["Multiline", [pattern]]
            for chart, pattern in patterns.items()
            if any(re.match(pattern, tag) for tag in tags)
        }
        for category, patterns in (CHARTS | {"Accuracy": accuracy}).items()
    }
    return {category: found for category, found in charts.items() if found}
