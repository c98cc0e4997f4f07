"""What mpx writes to TensorBoard besides curves: hyperparameters, a dashboard, the configuration and the final values.

Each function takes a run's `torch.utils.tensorboard.SummaryWriter` (`TensorBoardLogger.experiment`). None uses
`SummaryWriter.add_hparams`, which opens a run of its own per call and turns switches into 1.0.
Source: tensorboard/plugins/hparams/summary_v2.py, tensorboard/plugins/custom_scalar/layout.proto.
"""

import json
from collections.abc import Mapping

from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb

# The table's columns are constant, since TensorBoard reads them from whichever run it finds first. The seed is none of them: a row of
# averages would show the seed of one of its runs.
FIRST = ("model", "data", "precision", "sparsity")
HPARAMS = (*FIRST, "optimizer", "lr", "batch_size")
METRICS = {
    "final/test_accuracy": "test accuracy",
    "final/test_loss": "test loss",
    "final/test_perplexity": "test perplexity",
    "final/train_samples_per_s": "training samples/s",
    "final/peak_allocated_gib": "peak memory, GiB",
    "final/skipped_steps": "skipped steps",
}
LAYOUT = {
    "Accuracy": {
        "accuracy": ["Multiline", [r"^(train|val|test)/accuracy$"]],
        "loss": ["Multiline", [r"^(train|val|test)/loss$"]],
        "perplexity": ["Multiline", [r"^(train|val|test)/perplexity$"]],
    },
    "Speed": {"training samples/s": ["Multiline", [r"^speed/train_samples_per_s$"]]},
    "Numerics": {
        "loss scale": ["Multiline", [r"^numerics/loss_scale$"]],
        "skipped steps": ["Multiline", [r"^numerics/skipped_steps$"]],
        "gradient underflow": ["Multiline", [r"^numerics/gradient_underflow_fraction$"]],
    },
    "Memory": {"peak, GiB": ["Multiline", [r"^memory/peak_\w+_gib$"]]},
}


def write_hparams(writer, hparams: Mapping[str, str | float | int], trial_id: str) -> None:
    """One row of the HPARAMS table. Runs with the same `trial_id` (the setting without its seed) become one row of averages.

    Give switches as strings. Raises ValueError for a name without a column, which would become a column of this run alone.
    """
    if stray := set(hparams) - set(HPARAMS):
        raise ValueError(f"no column for hyperparameter {', '.join(sorted(stray))}; columns: {', '.join(HPARAMS)}")
    writer.file_writer.add_summary(_columns())
    writer.file_writer.add_summary(hparams_pb(dict(hparams), trial_id=trial_id))


def _columns():
    """The table's columns, the same bytes in every run.

    TensorBoard shows the first five, sorted by "differs", then by name. Those that tell settings apart are marked as differing.
    Source: tensorboard/plugins/hparams/backend_context.py.
    """
    metrics = [Metric(tag, display_name=name) for tag, name in METRICS.items()]
    summary = hparams_config_pb([HParam(name) for name in HPARAMS], metrics, time_created_secs=0)
    plugin = summary.value[0].metadata.plugin_data
    data = HParamsPluginData.FromString(plugin.content)
    for info in data.experiment.hparam_infos:
        info.differs = info.name in FIRST
    plugin.content = data.SerializeToString()
    return summary


def write_layout(writer) -> None:
    """The CUSTOM SCALARS dashboard. Its tags are regular expressions, so a run that did not measure something just lacks that curve."""
    writer.add_custom_scalars(LAYOUT)


def write_text(writer, config_yaml: str, environment: Mapping) -> None:
    """The TEXT tab: the resolved configuration and what it ran on, as code blocks (four spaces of Markdown)."""
    texts = {"config": config_yaml, "environment": json.dumps(dict(environment), indent=2, default=str)}
    for tag, text in texts.items():
        writer.add_text(tag, "\n".join("    " + line for line in text.splitlines()))


def write_final(writer, metrics: Mapping[str, float], step: int) -> None:
    """The values that the HPARAMS table shows, under `final/<name>`. Call it once, at the end of a run."""
    for name, value in metrics.items():
        writer.add_scalar(f"final/{name}", value, step)
    writer.flush()
