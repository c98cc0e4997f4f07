"""mpx.Recorder around plain loops: the measured speed against a known truth, every way to end, and records
that compare judges.
"""

from pathlib import Path

import pytest
import torch
from filelock import FileLock
from recorded_loops import SETTING, result, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import mpx
from mpx.compare.aggregate import compare, question
from mpx.compare.collect import collect
from mpx.compat import ASP
from mpx.errors import Diverged, UserError
from mpx.runs.folder import LOCK
from mpx.runs.result import rows

STEP_S, WAIT_S = 0.02, 0.01


def test_speed_leaves_out_warmup_evaluation_and_pauses(recorder, clock):
    with recorder() as run:
        for step in range(12):
            clock.sleep(WAIT_S)
            with run.step(8):
                clock.sleep(STEP_S if step >= 2 else 1.0)
            if step == 5:
                clock.sleep(3)
                run.metrics({"val/accuracy": 0.5})
            if step == 8:
                with run.pause():
                    clock.sleep(7)
        clock.sleep(11)
        run.metrics({"test/accuracy": 0.75})
    speed = result(run)["speed"]
    windows = 10 * STEP_S + 8 * WAIT_S  # the waits after evaluation and pause are outside
    assert speed["measured_steps"] == 10
    assert speed["warmup_steps"] == 2
    assert speed["train_samples_per_s"] == pytest.approx(80 / windows)
    assert speed["data_wait_fraction"] == pytest.approx(8 * WAIT_S / windows)
    assert speed["step_ms_p50"] == pytest.approx((STEP_S + WAIT_S) * 1e3)
    assert speed["time_to_train_s"] == pytest.approx(
        2 * 1.0 + 2 * WAIT_S - WAIT_S + windows + 3 + WAIT_S + 7 + WAIT_S
    )
    assert speed["time_to_train_parts_s"]["validation"] == pytest.approx(3 + WAIT_S)
    assert speed["time_to_train_parts_s"]["other"] == pytest.approx(7 + WAIT_S)


def test_steps_warm_up_again_after_a_pruning(recorder, clock):
    with recorder() as run:
        for step in range(10):
            if step == 5:
                run.pruned()
            with run.step(8):
                clock.sleep(STEP_S if step not in (5, 6) else 5.0)
    assert result(run)["speed"]["train_samples_per_s"] == pytest.approx(8 / STEP_S)
    assert result(run)["speed"]["measured_steps"] == 3 + 3


def test_an_interrupted_run_has_the_speed_of_the_windows_that_were_read(recorder, clock):
    with pytest.raises(KeyboardInterrupt), recorder() as run:  # noqa: PT012
        for step in range(10):
            with run.step(8):
                clock.sleep(STEP_S)
            if step == 5:
                run.metrics({"val/loss": 1.0})
        run.pruned()
        raise KeyboardInterrupt
    speed = result(run)["speed"]
    assert speed["measured_steps"] == 4
    assert speed["train_samples_per_s"] == pytest.approx(8 / STEP_S)


def test_a_loop_that_continues(recorder, clock):
    """Steps count on. The time of those before is unknown, so it cannot be the shortest of a comparison."""
    with recorder() as run:
        run.continued(100)
        for _ in range(5):
            with run.step(8):
                clock.sleep(STEP_S)
                run.log({"train/loss": 1.0})
    record = result(run)
    assert record["precision"]["optimizer_steps"] == 105
    assert record["environment"]["resumed_from_steps"] == [100]
    assert record["speed"]["time_to_train_s"] is None
    assert record["speed"]["time_to_train_s_reason"] == "the first 100 steps were trained before"
    assert record["speed"]["train_samples_per_s"] == pytest.approx(8 / STEP_S)
    assert rows(run.folder / "curves.csv")[0] == "train/loss,101,1.0"
    assert collect(run.folder.parents[1])[0][0].time_to_train_s is None


def test_a_completed_run(recorder, capsys):
    model = nn.Linear(16, 8)
    with recorder(arguments={"model": model, "label": "baseline"}, **{"optimizer.lr": 0.1}) as run:
        train(run, model)
        run.metrics({"val/loss": 0.25, "test/accuracy": torch.tensor(0.5)})
    record = result(run)
    assert run.record == record
    assert record["metrics"] == {"val/loss": 0.25, "test/accuracy": 0.5}
    assert (record["status"], record["label"]) == ("completed", "baseline")
    assert record["setting"] == SETTING | {"optimizer.lr": 0.1}
    assert (
        run.folder.relative_to(run.folder.parents[2]).as_posix()
        == "mine/net-set-fp32-dense-optimizer.lr=0.1/seed0"
    )
    assert record["config"]["data"]["batch_size"] == 4
    assert record["precision"]["observed"] == {"matmul": {"fp32": 2}}
    # its scaler may be one that the Recorder was not shown
    assert (record["precision"]["optimizer_steps"], record["precision"]["skipped_steps"]) == (3, None)
    assert record["precision"]["audit"]["as_promised"] == {"matmul": 1.0}
    assert record["sparsity"]["pruned_share"] == 0
    assert record["environment"]["torch"] == torch.__version__
    assert capsys.readouterr().out == f"completed, recorded in {run.folder}\n"
    FileLock(run.folder / LOCK).acquire(timeout=0)


def test_flops_are_those_of_the_first_step(recorder, clock):
    model = nn.Linear(16, 8, bias=False)
    with recorder(arguments={"model": model, "warmup_steps": 1}) as run:
        for _ in range(3):
            with run.step(4):
                model(torch.ones(4, 16)).sum().backward()
                clock.sleep(1)
    forward_and_weights = 2 * (2 * 4 * 16 * 8)
    assert result(run)["speed"]["model_tflops_per_s"] == pytest.approx(forward_and_weights / 1e12)


def test_scalars_go_to_curves_and_tensorboard(recorder):
    with recorder() as run:
        for step in range(3):
            with run.step(1):
                run.log({"train/loss": torch.tensor(float(step)), "train/lr": 0.5})
        run.metrics({"val/loss": 2.5, "test/accuracy": 1.0})
    assert rows(run.folder / "curves.csv") == [
        "train/loss,1,0.0",
        "train/loss,2,1.0",
        "train/loss,3,2.0",
        "val/loss,3,2.5",
    ]
    events = EventAccumulator(str(run.folder)).Reload()
    assert [event.step for event in events.Scalars("train/lr")] == [1, 2, 3]
    assert events.Scalars("final/test_accuracy")[0].value == 1.0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("bad\nthing"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(3), "interrupted"),
        (Diverged("NaN"), "diverged"),
    ],
)
def test_how_the_block_ends(recorder, error, status):
    run = recorder()
    with pytest.raises(type(error)):  # noqa: PT012, SIM117
        with run:
            train(run, nn.Linear(16, 8))
            raise error
    record = result(run)
    assert record["status"] == status
    assert record["error"] == {"failed": "ValueError: bad thing", "diverged": "Diverged: NaN"}.get(
        status, record["error"]
    )
    assert record["memory"]["peak_rss_gib"] > 0
    assert len(rows(run.folder / "curves.csv")) == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            torch.ones(2, 3),
            "val/loss is a tensor of shape (2, 3). Give one number, for example val/loss=value.mean().",
        ),
        (None, "val/loss=None must be one number. For example val/loss=0.5."),
        ("low", "val/loss='low' must be one number. For example val/loss=0.5."),
    ],
    ids=str,
)
def test_a_value_that_is_not_one_number(recorder, value, words):
    with recorder() as run:
        for give in (run.log, run.metrics):
            with pytest.raises(UserError) as raised:
                give({"val/loss": value})
            assert str(raised.value) == words
        run.log({"train/loss": torch.ones(1, 1)})
    assert result(run)["status"] == "completed"


@pytest.mark.parametrize("where", ["loss", "metric"])
def test_what_is_not_finite_diverged(recorder, where):
    with recorder() as run, run.step(1):
        run.log({"train/loss": float("nan") if where == "loss" else 1.0})
        run.metrics({"test/loss": float("inf") if where == "metric" else 1.0})
    assert result(run)["status"] == "diverged"
    assert result(run)["error"] == f"{'train' if where == 'loss' else 'test'}/loss is infinite or NaN"


@pytest.mark.parametrize("ending", ["loss", "weights", "frozen"])
def test_a_loop_that_raises_over_nan_has_diverged(recorder, ending):
    """As failed, it would be left out, and its setting judged by the seeds that went well."""
    model = nn.Linear(4, 2)
    nn.init.constant_(model.weight, 1.0 if ending == "loss" else float("nan"))
    model.weight.requires_grad_(ending != "frozen")
    run = recorder(arguments={"model": model})
    with pytest.raises(RuntimeError, match="stop"):  # noqa: PT012, SIM117
        with run:
            run.log({"train/loss": float("nan") if ending == "loss" else 1.0})
            raise RuntimeError("stop")
    assert result(run)["status"] == ("failed" if ending == "frozen" else "diverged")
    with recorder(arguments={"model": model}) as run:
        run.metrics({"test/accuracy": 0.5})
    assert result(run)["status"] == ("diverged" if ending == "weights" else "completed")


def test_a_pruned_model_is_verified(recorder):
    model = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruning = ASP.prune_trained_model(model, optimizer, allow_permutation=False)
    with recorder(arguments={"model": model}, sparsity="2of4") as run:
        run.pruned()
        train(run, model, optimizer=optimizer)
    sparsity = result(run)["sparsity"]
    assert pruning.is_sparsity_enabled()
    assert (sparsity["verified"], sparsity["density"], sparsity["pruned_share"]) == (True, 0.5, 0.5)
    assert [layer["pruned"] for layer in sparsity["layers"]] == [True]


@pytest.mark.parametrize("head", [nn.Identity(), nn.Linear(8, 8)])
def test_a_dense_model_is_not_recorded_as_pruned(recorder, head):
    for weight in head.parameters():  # frozen zeros, which are no pruned layer
        nn.init.zeros_(weight.requires_grad_(False))
    model = nn.Sequential(nn.Linear(16, 8), head)
    with (
        pytest.raises(
            UserError,
            match=r"sparsity=2of4, but the finished model does not have that "
            r"pattern\. Prune it",
        ),
        recorder(arguments={"model": model}, sparsity="2of4") as run,
    ):
        train(run, model)
    assert result(run)["status"] == "failed"


def test_a_loss_scale_is_recorded(recorder):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    model = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorder(arguments={"scaler": scaler}) as run, run.step(1):
        scaler.scale(model(torch.ones(1, 16)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    found = result(run)["precision"]
    assert (found["loss_scale"]["initial"], found["loss_scale"]["final"]) == (8.0, 16.0)
    # an overflow would skip the step unseen
    assert (found["optimizer_steps"], found["skipped_steps"]) == (None, None)


def test_compiled_steps_without_gaps_need_observe_false(recorder):
    model = torch.compile(nn.Linear(16, 8), backend="eager", fullgraph=True)
    with recorder(arguments={"observe": False}) as run:
        train(run, model)
    assert result(run)["precision"]["observed"] == {}
    assert result(run)["speed"]["model_tflops_per_s"] is None
    for name in ("model_tflops_per_s", "mfu"):
        assert result(run)["speed"][f"{name}_reason"] == "no step was observed (observe=)"


def test_a_second_run_is_beside_or_in_place_of_the_first(recorder):
    for if_exists, name in (("new", "seed0"), ("new", "seed0-2"), ("overwrite", "seed0-2")):
        with recorder(arguments={"if_exists": if_exists}) as run, run.step(1):
            pass
        assert run.folder.name == name
    with pytest.raises(UserError, match="already there"), recorder(arguments={"if_exists": "error"}):
        pass


def test_compare_judges_loops(recorder, tmp_path):
    for precision in ("fp32", "amp_bf16"):
        for seed in (0, 1):
            with recorder(precision=precision, seed=seed) as run:
                train(run, nn.Linear(16, 8), autocast=torch.bfloat16 if precision == "amp_bf16" else None)
                run.metrics({"test/accuracy": 0.5 + seed / 10})
    runs, left_out = collect(tmp_path / "mine")
    (group,) = compare(runs, question(), study="mine", folder=Path("mine")).groups
    assert [row.setting for row in group.rows] == ["fp32-dense", "amp_bf16-dense"]
    assert [(run.setting, run.seed, run.metrics) for run in runs] == [
        (f"{precision}-dense", seed, {"test/accuracy": 0.5 + seed / 10})
        for precision in ("amp_bf16", "fp32")
        for seed in (0, 1)
    ]
    assert {run.batch_size for run in runs} == {4}
    assert left_out == []


@pytest.mark.parametrize(
    ("precision", "promised", "autocast", "ran"),
    [("fp32", "fp32", torch.bfloat16, "bf16"), ("amp_bf16", "bf16", None, "fp32")],
)
def test_a_format_that_contradicts_the_setting_is_said(recorder, capsys, precision, promised, autocast, ran):
    with recorder(precision=precision) as run:
        train(run, nn.Linear(16, 8), autocast=autocast)
    line = f"mpx.Recorder: precision={precision} means matmul in {promised}, but the first step ran {ran}\n"
    assert capsys.readouterr().out.count(line) == 1


def test_it_names_the_metric_of_its_runs(recorder, capsys):
    with recorder(arguments={"metric": "val/dice", "metric_goal": "min"}) as run:
        run.metrics({"val/dice": 0.5})
    assert result(run)["metric"] == {"name": "val/dice", "goal": "min"}
    assert "never given" not in capsys.readouterr().out
    with recorder(arguments={"metric": "val/dcie"}, seed=1) as run:
        run.metrics({"val/dice": 0.5})
    assert "metric=val/dcie was never given to metrics, which had val/dice" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"metric=dice must be a name such as val/dice"):
        recorder(arguments={"metric": "dice"})


@pytest.mark.parametrize(
    ("arguments", "setting", "words"),
    [
        ({"study": "a/b"}, {}, ("study=a/b", "a folder's name")),
        ({"if_exists": "resume"}, {}, ("if_exists=resume", "new, overwrite, error")),
        ({"label": "a$b"}, {}, ("label=a$b", "letters, digits")),
        ({}, {"seed": 0.5}, ("setting.seed=0.5", "whole number")),
        ({}, {"lr": [1]}, ("setting.lr=[1]", "a number")),
        ({}, {"a b": 1}, ("'a b'", "optimizer.lr")),
    ],
)
def test_mistakes_are_one_line(recorder, tmp_path, arguments, setting, words):
    with pytest.raises(UserError) as raised:
        recorder(arguments=arguments, **setting)
    assert all(word in str(raised.value) for word in words)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_before_the_loop(recorder, tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="cannot write"),
        recorder(arguments={"output_dir": tmp_path / "file"}) as run,
        run.step(1),
    ):
        raise AssertionError("the loop has begun")


def test_one_recorder_at_a_time(recorder):
    """In a loop over two models, each would time the steps of both."""
    with recorder() as run:
        with (
            pytest.raises(
                UserError,
                match=r"the block of another one has not ended.*Train one after the "
                r"other",
            ),
            recorder(seed=1),
        ):
            pass
        train(run, nn.Linear(16, 8))
    with recorder(seed=1) as run:
        train(run, nn.Linear(16, 8))
    assert result(run)["status"] == "completed"


def test_mistakes_in_the_block(recorder):
    with pytest.raises(UserError, match="setting has no 'seed'"):
        mpx.Recorder(setting={key: value for key, value in SETTING.items() if key != "seed"})
    with (
        pytest.raises(UserError, match=r"only within its block\. Write: with mpx\.Recorder"),
        recorder().step(1),
    ):
        pass
    with recorder() as run:
        with pytest.raises(UserError, match=r"step\(0\): samples must be a whole number"), run.step(0):
            pass
        with pytest.raises(
            UserError,
            match=r"test/accuracy=98.5 must be a share from 0 to 1. For example "
            r"test/accuracy=0.985",
        ):
            run.metrics({"test/accuracy": 98.5})
        with pytest.raises(UserError, match="'accuracy' is not the name of a metric"):
            run.metrics({"accuracy": 0.5})
        with pytest.raises(UserError, match="records one run"), run:
            pass
