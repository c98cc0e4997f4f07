"""Which folders of a study are runs that count, what is read from them, and why others are left out."""

import math

import pytest
from made_runs import GPU, record, write

from mpx.compare.collect import collect
from mpx.compare.words import portable
from mpx.runs.folder import locked


def test_figures_of_a_record(tmp_path):
    write(tmp_path / "a" / "seed3", record(precision="amp", sparsity="2of4", seed=3, accuracy=0.1 + 0.2))
    ((run,), left_out) = collect(tmp_path)
    assert left_out == []
    assert (run.model, run.data, run.setting, run.seed, run.status) == (
        "resnet18",
        "cifar10",
        "amp-2of4",
        3,
        "completed",
    )
    assert run.metrics == {"test/accuracy": 0.1 + 0.2, "test/loss": 0.2}
    assert (run.batch_size, run.device, run.exclusive, run.emulated) == (256, GPU, True, False)
    assert (run.train_samples_per_s, run.step_ms_p50, run.time_to_train_s, run.peak_gib) == (
        1000.0,
        25.6,
        60.0,
        2.5,
    )
    assert (run.loss_scale_final, run.optimizer_steps, run.skipped_steps) == (131072.0, 98, 2)
    assert (run.gradient_underflow, run.gradient_underflow_unscaled) == (0.001, 0.1)
    assert (run.density, run.kept_magnitude, run.folder) == (0.5, 0.746, "a/seed3")
    assert run.environment["torch"] == "2.15.0"
    assert run.environment["command"] == "python -m mpx.train seed=3 precision=amp"


def test_folders_of_the_machine_do_not_get_into_the_table(tmp_path):
    content = record()
    command = (
        "python -m mpx.train --config-dir /home/me 'data.root=/home/me/my data' output_dir=/tmp/x "
        "'model.widths=[64, 32]' seed=0"
    )
    content["environment"]["command"] = command
    write(tmp_path / "a" / "seed0", content)
    run = collect(tmp_path)[0][0]
    assert run.environment["command"] == (
        "python -m mpx.train --config-dir=DIR data.root=DIR output_dir=DIR 'model.widths=[64, 32]' seed=0"
    )
    assert portable("python -m mpx.train -cd=/home/me seed=0") == (
        "python -m mpx.train --config-dir=DIR seed=0"
    )


@pytest.mark.parametrize(
    ("trainer", "device"),
    [
        ({"devices": 1}, GPU),
        ({"devices": 2}, f"2 × {GPU}"),
        ({"devices": "auto"}, f"4 × {GPU}"),
        ({"devices": 4, "num_nodes": 2}, f"2 nodes of 4 × {GPU}"),
    ],
    ids=str,
)
def test_device_says_how_many_were_used(tmp_path, trainer, device):
    content = record()
    content["config"]["trainer"] = trainer
    write(tmp_path / "a" / "seed0", content)
    assert collect(tmp_path)[0][0].device == device


def test_on_a_cpu_threads_are_part_of_the_device_and_ram_is_the_memory(tmp_path):
    content = record()
    content["memory"]["peak_allocated_gib"] = None
    content["speed"]["cpu_used_by_others"] = 0.25
    write(tmp_path / "a" / "seed0", content)
    run = collect(tmp_path)[0][0]
    assert (run.device, run.peak_gib, run.cpu_used_by_others) == ("a CPU, 8 threads", 4.0, 0.25)


UNREADABLE = "result.json cannot be read, or was not written by mpx"
IN_FP32 = record()
IN_FP32["precision"]["audit"] = {"as_promised": {"conv": 0.9, "matmul": 0.1}}
DAMAGED = [
    ('{"schema_version": 1, "status": "compl', f"{UNREADABLE} (JSONDecodeError"),
    (record() | {"schema_version": 2}, "result.json has schema_version 2, this mpx reads 1"),
    (record(status="interrupted"), "interrupted; the same command with if_exists=resume continues it"),
    (record(status="failed") | {"error": "out of memory\nhere"}, "failed: out of memory here"),
    (IN_FP32, "did not compute in the formats of precision=fp32: 10% of the matmul FLOPs are as promised"),
    (record(accuracy=math.nan), f"{UNREADABLE} (ValueError: a metric is no number"),
]


@pytest.mark.parametrize(("content", "reason"), DAMAGED, ids=range(len(DAMAGED)))
def test_what_is_no_finished_run_is_left_out_with_a_reason(tmp_path, content, reason):
    write(tmp_path / "a" / "seed0", record())
    write(tmp_path / "b" / "seed0", content)
    runs, ((folder, why),) = collect(tmp_path)
    assert [run.folder for run in runs] == ["a/seed0"]
    assert folder == "b/seed0"
    assert why.startswith(reason)


def test_a_run_without_a_record_is_listed_and_other_folders_are_not(tmp_path):
    write(tmp_path / "a" / "seed0", record())
    for name in (
        "a/seed1/config.yaml",
        "_sweep/1/config.yaml",
        ".hidden/result.json",
        "notes/readme.txt",
        "a/seed0/checkpoints/result.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    runs, left_out = collect(tmp_path)
    assert len(runs) == 1
    assert [folder for folder, _ in left_out] == ["a/seed1"]
    assert "still running, or cut off" in left_out[0][1]


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_is_being_continued_is_said_to_run(tmp_path, status):
    write(tmp_path / "a" / "seed0", record(status=status))
    continued = locked(tmp_path / "a" / "seed0")
    assert collect(tmp_path)[1] == [("a/seed0", "still running")]
    continued.lock.release()
    assert collect(tmp_path)[1][0][1].startswith(status)


def test_the_newest_of_a_setting_and_seed_counts(tmp_path):
    """By start; seed0 was overwritten after seed0-2 had run. seed1 knows no times: the higher number is the
    newer.
    """
    for name, seed, started in (
        ("seed0", 0, "2026-11-22"),
        ("seed0-2", 0, "2026-11-21"),
        ("seed1-2", 1, None),
        ("seed1-10", 1, None),
    ):
        content = record(seed=seed)
        content["environment"]["started_at"] = started
        write(tmp_path / "a" / name, content)
    runs, left_out = collect(tmp_path)
    assert [run.folder for run in runs] == ["a/seed0", "a/seed1-10"]
    assert dict(left_out) == {
        "a/seed0-2": "an older run of the same setting and seed; a/seed0 counts",
        "a/seed1-2": "an older run of the same setting and seed; a/seed1-10 counts",
    }


def test_what_a_record_says_of_its_data_and_its_metric_is_read(tmp_path):
    more = {"data": {"name": "mine", "contents": "abc"}, "metric": {"name": "test/mse", "goal": "min"}}
    write(tmp_path / "a" / "seed0", record() | more)
    (run,), _ = collect(tmp_path)
    assert (run.contents, run.metric, run.metric_goal) == ("abc", "test/mse", "min")
