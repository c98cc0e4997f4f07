"""Two seeds of a trial must be one row of TensorBoard's HPARAMS table: asked of TensorBoard itself."""

import pytest
from ask_tensorboard import tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from mpx.render import tensorboard as tb


def write_run(folder, accuracy: float, precision: str = "amp") -> None:
    with SummaryWriter(str(folder)) as writer:
        setting = {
            "model": "lstm",
            "data": "digits",
            "precision": precision,
            "sparsity": "2of4",
            "seed": 0,
            "optimizer.lr": 0.005,
        }
        environment = {"torch": "2.15.0", "device": None}
        tb.write_first(
            writer,
            setting,
            f"lstm-digits-{precision}",
            "model:\n  name: lstm\n",
            environment,
            optimizer="adamw",
            lr=0.005,
        )
        writer.add_scalar("train/loss", 0.5, 1)
        record = {
            "metrics": {"test/accuracy": accuracy, "val/accuracy": 0.9},
            "memory": {"peak_allocated_gib": None},
        }
        record["speed"] = {"train_samples_per_s": 1000.0, "time_to_train_s": 3.0}
        tb.write_final(
            writer, record | {"precision": {"emulated": precision == "amp", "skipped_steps": 2}}, step=7
        )


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_run(root / "amp" / "seed0", 0.96)
    write_run(root / "amp" / "seed1", 0.98)
    write_run(root / "amp" / "seed0-2", 0.5)
    write_run(root / "fp32" / "seed0", 0.97, precision="fp32")
    return root


@pytest.fixture(scope="module")
def server(logs):
    """A real TensorBoard; yields a function that asks its plugins."""
    with tensorboard(logs) as ask:
        yield lambda path, body=None: ask(f"plugin/{path}", body)


def test_one_run_holds_everything(logs):
    events = EventAccumulator(
        str(logs / "amp" / "seed0"), size_guidance={"scalars": 0, "tensors": 0}
    ).Reload()
    names = {name.removeprefix("final/") for name in events.Tags()["scalars"]}
    # an emulated speed is not the format's
    assert names == {"train/loss", "test_accuracy", "time_to_train_s", "skipped_steps"}
    (final,) = events.Scalars("final/test_accuracy")
    assert (final.step, round(final.value, 6)) == (7, 0.96)
    assert "hp_metric" not in str(events.Tags())
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == "    model:\n      name: lstm"
    assert not [path for path in (logs / "amp" / "seed0").iterdir() if path.is_dir()]  # no sub-runs


def test_columns_are_the_constant_ones(server):
    experiment = server("hparams/experiment", {})
    names = [info["name"] for info in experiment["hparamInfos"]]
    assert sorted(names) == sorted(tb.HPARAMS)  # TensorBoard reorders them
    assert set(names[:4]) == set(tb.NAMED)  # it shows the first five unasked
    assert [info["name"]["tag"] for info in experiment["metricInfos"]] == list(tb.METRICS)


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


def test_dashboard(server):
    layout = server("custom_scalars/layout")
    assert [category["title"] for category in layout["category"]] == [
        "Accuracy",
        "Speed",
        "Numerics",
        "Memory",
    ]
