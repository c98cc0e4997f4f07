"""Write a run's hyperparameters, dashboard layout, configuration and final values to TensorBoard.

Each function takes a run's `torch.utils.tensorboard.SummaryWriter` (`TensorBoardLogger.experiment`). None
uses `SummaryWriter.add_hparams`, which starts a new run per call and turns booleans into 1.0. Source:
tensorboard/plugins/hparams/summary_v2.py, tensorboard/plugins/custom_scalar/layout.proto.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb

from mpx.settings.fields import NAMED

# The table's columns are constant, since TensorBoard reads them from the first run that it finds. The seed is
# not a column, since a row averages over seeds.
HPARAMS = (*NAMED, "optimizer", "lr", "batch_size")
METRICS = {
    "final/test_accuracy": "test accuracy",
    "final/test_loss": "test loss",
    "final/test_perplexity": "test perplexity",
    "final/test_mse": "test mse",
    "final/test_map": "test map",
    "final/test_f1": "test f1",
    "final/train_samples_per_s": "training samples/s",
    "final/time_to_train_s": "time to train, s",
    "final/peak_allocated_gib": "peak memory, GiB",
    "final/skipped_steps": "skipped steps",
}
# of CUSTOM SCALARS. Its tags are regular expressions, so a run without a measurement only lacks its curve.
LAYOUT = {
    "Accuracy": {
        "accuracy": ["Multiline", [r"^(train|val|test)/accuracy$"]],
        "loss": ["Multiline", [r"^(train|val|test)/loss$"]],
        "perplexity": ["Multiline", [r"^(train|val|test)/perplexity$"]],
        "own tasks": ["Multiline", [r"^(val|test)/(mse|mae|map|f1)$"]],
    },
    "Speed": {"training samples/s": ["Multiline", [r"^speed/train_samples_per_s$"]]},
    "Numerics": {
        "loss scale": ["Multiline", [r"^numerics/loss_scale$"]],
        "skipped steps": ["Multiline", [r"^numerics/skipped_steps$"]],
        "gradient underflow": ["Multiline", [r"^numerics/gradient_underflow_fraction$"]],
    },
    "Memory": {"peak, GiB": ["Multiline", [r"^memory/peak_\w+_gib$"]]},
}


def write_first(
    writer,
    setting: Mapping[str, Any],
    trial_id: str,
    config_yaml: str,
    environment: Mapping,
    **more: str | float | int,
) -> None:
    """Before training: the run's row of the HPARAMS table, the layout, the configuration and the environment.

    setting: of result.json. more: further hyperparameters.
    """
    write_hparams(writer, {key: setting[key] for key in NAMED} | more, trial_id)
    writer.add_custom_scalars(LAYOUT)
    write_text(writer, config_yaml, environment)


def write_hparams(writer, hparams: Mapping[str, str | float | int], trial_id: str) -> None:
    """Write one row of the HPARAMS table. Runs with the same `trial_id` (the setting without its seed) become
    one row of averages.

    A second run of a seed, seed0-2, is in a row of its own, `trial_id (2)`, so that no seed counts twice in
    an average. Pass booleans as strings. Raises ValueError for a name without a column, which would add a
    column for this run only.
    """
    if stray := set(hparams) - set(HPARAMS):
        raise ValueError(
            f"no column for hyperparameter {', '.join(sorted(stray))}; columns: {', '.join(HPARAMS)}"
        )
    writer.file_writer.add_summary(_columns())
    again = re.fullmatch(r"seed\d+-(\d+)", Path(writer.get_logdir()).name)
    row = f"{trial_id} ({again[1]})" if again else trial_id
    writer.file_writer.add_summary(hparams_pb(dict(hparams), trial_id=row))


def _columns():
    """The table's columns, as the same bytes in every run.

    TensorBoard shows the first five columns, sorted by "differs" and then by name. The columns that
    distinguish settings are marked. Source: tensorboard/plugins/hparams/backend_context.py.
    """
    metrics = [Metric(tag, display_name=name) for tag, name in METRICS.items()]
    summary = hparams_config_pb([HParam(name) for name in HPARAMS], metrics, time_created_secs=0)
    plugin = summary.value[0].metadata.plugin_data
    data = HParamsPluginData.FromString(plugin.content)
    for info in data.experiment.hparam_infos:
        info.differs = info.name in NAMED
    plugin.content = data.SerializeToString()
    return summary


def write_text(writer, config_yaml: str, environment: Mapping) -> None:
    """Write the resolved configuration and the environment to the TEXT tab, as Markdown code blocks (four
    spaces).
    """
    texts = {"config": config_yaml, "environment": json.dumps(dict(environment), indent=2, default=str)}
    for tag, text in texts.items():
        writer.add_text(tag, "\n".join("    " + line for line in text.splitlines()))


def write_final(writer, record: Mapping[str, Any], step: int) -> None:
    """Write the values of the HPARAMS table, under `final/<name>`. Call it once, at the end of a run. record:
    its result.json.
    """
    speed, precision = record["speed"], record["precision"]
    final = {
        name.replace("/", "_"): value for name, value in record["metrics"].items() if name.startswith("test/")
    }
    final |= {
        "skipped_steps": precision["skipped_steps"],
        "peak_allocated_gib": record["memory"]["peak_allocated_gib"],
    }
    if "measured" not in speed:
        final["time_to_train_s"] = speed["time_to_train_s"]
        # the table sets a rate beside those of other formats, and an emulated one is not the format's
        if not precision["emulated"]:
            final["train_samples_per_s"] = speed["train_samples_per_s"]
    for name, value in final.items():
        if value is not None:
            writer.add_scalar(f"final/{name}", value, step)
    writer.flush()
