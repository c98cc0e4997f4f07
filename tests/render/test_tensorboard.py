"""Two seeds of a trial must be one row of TensorBoard's HPARAMS table: asked of TensorBoard itself."""

import pytest
from ask_tensorboard import tensorboard
from made_comparison import made_comparison, made_group
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from mpx.render import report
from mpx.render import tensorboard as tb


def write_run(folder, accuracy: float, precision: str = "amp") -> None:
    with SummaryWriter(str(folder)) as writer:
        hparams = {
            "model": "lstm", "data": "digits", "precision": precision, "sparsity": "2of4", "seed": 0,
            "optimizer.weight_decay": 0.1 if precision == "amp" else 0.01, "optimizer.nesterov": True,
        }  # fmt: skip
        environment = {"torch": "2.15.0", "device": None}
        tb.write_first(writer, hparams, f"lstm-digits-{precision}", "model:\n  name: lstm\n", environment)
        writer.add_scalar("train/loss", 0.5, 1)
        record = {
            "metric": {"name": "test/accuracy", "goal": "max"},
            "metrics": {"test/accuracy": accuracy, "val/accuracy": 0.9},
            "memory": {"peak_allocated_gib": None, "peak_rss_gib": 0.5},
            "speed": {"train_samples_per_s": 1000.0, "time_to_train_s": 3.0},
            "precision": {"emulated": precision == "amp"},
        }
        tb.write_final(writer, record, step=7, tags=["train/loss", "val/accuracy", "numerics/loss_scale"])


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_run(root / "amp" / "seed0", 0.96)
    write_run(root / "amp" / "seed1", 0.98)
    write_run(root / "amp" / "seed0-2", 0.5)
    write_run(root / "fp32" / "seed0", 0.97, precision="fp32")
    comparison = made_comparison(root, made_group(notes=("a <note>",)))
    for _ in range(2):  # the second replaces the first
        report.write(comparison)
    return root


@pytest.fixture(scope="module")
def server(logs):
    """A real TensorBoard; yields a function that asks its plugins."""
    with tensorboard(logs) as ask:
        yield lambda path, body=None: ask(f"plugin/{path}", body)


def test_the_report_s_run_has_tables_and_verdict_as_text_and_plots_as_images(logs, server):
    assert len(list((logs / "_report").rglob("events.out.tfevents.*"))) == 1
    tag = "resnet18--cifar10"
    table = server(f"text/text?run=_report&tag=table%2F{tag}%2Ftext_summary")[0]["text"]
    assert table.count("<tr>") == 8  # of the text, the head and six settings, rendered from Markdown
    assert "a &lt;note&gt;" in table
    assert "Fastest to train" in server("text/text?run=_report&tag=verdict%2Ftext_summary")[0]["text"]
    assert {f"{tag}/front", f"{tag}/seeds"} <= set(server("images/tags")["_report"])
    listed = server(f"images/images?run=_report&tag={tag}%2Ffront&sample=0")
    assert server(f"images/individualImage?{listed[0]['query']}").startswith(b"\x89PNG")


def test_one_run_holds_everything(logs):
    events = EventAccumulator(
        str(logs / "amp" / "seed0"), size_guidance={"scalars": 0, "tensors": 0}
    ).Reload()
    names = {name.removeprefix("final/") for name in events.Tags()["scalars"]}
    # an emulated speed is not the format's
    assert names == {"train/loss", "test_accuracy", "train_time_s", "used_memory_gib"}
    (final,) = events.Scalars("final/test_accuracy")
    assert (final.step, round(final.value, 6)) == (7, 0.96)
    assert "hp_metric" not in str(events.Tags())
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == "    model:\n      name: lstm"
    assert not [path for path in (logs / "amp" / "seed0").iterdir() if path.is_dir()]  # no sub-runs


def test_columns_are_what_differs_and_what_a_verdict_is_about(server):
    experiment = server("hparams/experiment", {})
    names = [info["name"] for info in experiment["hparamInfos"]]
    assert names[:2] == ["optimizer.weight_decay", "precision"]  # TensorBoard shows the first
    assert set(names[2:]) == {"data", "model", "optimizer.nesterov", "sparsity"}
    assert [info["name"]["tag"] for info in experiment["metricInfos"]] == [
        "final/test_accuracy",
        "final/train_samples_per_s",
        "final/train_time_s",
        "final/used_memory_gib",
        "train/loss",
    ]


def test_seeds_of_a_trial_are_one_row_of_averages(server):
    request = {
        "startIndex": 0,
        "sliceSize": 100,
        "aggregationType": "AGGREGATION_AVG",
        "allowedStatuses": ["STATUS_UNKNOWN"],
    }
    request["colParams"] = [{"metric": {"tag": "final/test_accuracy"}}]
    groups = {group["name"]: group for group in server("hparams/session_groups", request)["sessionGroups"]}
    assert set(groups) == {"lstm-digits-amp", "lstm-digits-amp (2)", "lstm-digits-fp32"}
    assert [session["name"] for session in groups["lstm-digits-amp (2)"]["sessions"]] == ["amp/seed0-2"]
    amp = groups["lstm-digits-amp"]
    assert sorted(session["name"] for session in amp["sessions"]) == ["amp/seed0", "amp/seed1"]
    accuracy = {value["name"]["tag"]: value["value"] for value in amp["metricValues"]}["final/test_accuracy"]
    assert accuracy == pytest.approx(0.97, abs=1e-6)
    assert amp["hparams"]["precision"] == "amp"


def test_dashboard_has_charts_for_what_was_logged(server):
    layout = server("custom_scalars/layout")
    charts = {
        category["title"]: [chart["title"] for chart in category["chart"]] for category in layout["category"]
    }
    assert charts == {"Accuracy": ["accuracy", "loss"], "Numerics": ["loss scale"]}
