"""Regression, multi-label and token classification: losses, metrics against hand-made values, and runs of
each.
"""

import pytest
import torch
from few_steps import FEW_STEPS
from refused import assert_refused
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from mpx.compare.collect import collect
from mpx.data.spec import NO_LABEL
from mpx.data.targets import targets
from mpx.data.tasks import Meters, loss_of
from mpx.errors import UserError


def taken(meters, *batches):
    for logits, y in batches:
        meters.add(logits, y)
    return {name: value.item() for name, value in meters.take("text").items()}


def test_regression():
    x, y = torch.randn(10, 2), torch.randn(10, 2)
    found = taken(Meters("regression", 2), (x[:6], y[:6]), (x[6:], y[6:]))
    squared = (x - y).square().mean().item()
    assert found == pytest.approx(
        {"loss": squared, "mse": squared, "mae": (x - y).abs().mean().item()}, rel=1e-5
    )


def test_multilabel():
    logits, y = (
        torch.tensor([[2.0, -1.0], [-1.0, 3.0], [1.0, -2.0]]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]),
    )
    found = taken(Meters("multilabel", 2), (logits[:2], y[:2]), (logits[2:], y[2:]))
    # Label 0: its only positive is ranked first, precision 1. Label 1: positives are ranked first and last of
    # 3, precisions 1 and 2/3.
    assert found["map"] == pytest.approx((1 + (1 + 2 / 3) / 2) / 2)
    assert found["f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert found["loss"] == pytest.approx(binary_cross_entropy_with_logits(logits, y).item())
    assert "accuracy" not in found


def test_tokens_are_judged_where_they_have_a_label():
    y = torch.tensor([[NO_LABEL, 0, 1, NO_LABEL], [NO_LABEL, 1, 1, 1]])
    logits = torch.nn.functional.one_hot(torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]), 2).float()
    found = taken(Meters("tokens", 2), (logits, y), (logits[:1, :1], y[:1, :1]))
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["f1"] == pytest.approx((2 / 3 + 6 / 7) / 2)
    assert found["loss"] == pytest.approx(cross_entropy(logits.flatten(0, 1), y.flatten()).item())
    assert found["loss"] == pytest.approx(loss_of(logits, y, task="tokens").item())


ROWS = {
    "regression": [f"a film {'good ' * (i % 4)},{i % 4 - 0.5}" for i in range(60)],
    "multilabel": [f"a film {i},{';'.join(['good', 'long'][: i % 3])}" for i in range(60)],
    "tokens": [f"some good film{i},O POS O" for i in range(60)],
}
METRICS = {"regression": ("mse", "min"), "multilabel": ("map", "max"), "tokens": ("f1", "max")}


@pytest.fixture
def words(tmp_path):
    """The words that train on made rows of a task."""

    def make(task, model="lstm", rows=None):
        (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows or ROWS[task]) + "\n")
        small = {
            "lstm": ["model.hidden_size=16"],
            "bert_small": ["model.hidden_size=16", "model.num_heads=2", "model.num_layers=1"],
        }
        data = [
            "data=text_csv",
            f"data.path={tmp_path}/rows.csv",
            f"data.cache={tmp_path}/c",
            "data.seq_len=8",
            "data.vocab_size=300",
        ]
        return [f"model={model}", *small.get(model, ()), *data, f"data.task={task}", *FEW_STEPS]

    return make


@pytest.mark.parametrize("model", ["lstm", "bert_small"])
@pytest.mark.parametrize("task", ROWS)
def test_a_run_is_judged_by_its_tasks_metric(train, words, task, model):
    ran = train(*words(task, model), "data.batch_size=16")
    assert ran.code == 0, ran.err
    name, goal = METRICS[task]
    assert ran.record["metric"] == {"name": f"test/{name}", "goal": goal}
    assert f"test {name}" in ran.out
    assert f"val {name}" in ran.out
    assert (ran.folder / "checkpoints" / "best.ckpt").is_file()
    ((run,), left_out) = collect(ran.outputs / "default")
    assert (run.metric, run.metric_goal, left_out) == (f"test/{name}", goal, [])
    assert run.metrics[f"test/{name}"] == ran.record["metrics"][f"test/{name}"]


def test_best_is_the_epoch_with_the_lowest_error(train, words):
    ran = train(
        *words("regression"),
        "trainer.max_epochs=4",
        "trainer.limit_train_batches=1.0",
        "data.batch_size=16",
        "optimizer.lr=0.3",
    )
    assert ran.code == 0, ran.err
    best = torch.load(ran.folder / "checkpoints" / "best.ckpt", weights_only=True)
    seen = [
        float(line.split("val mse ")[1].split()[0]) for line in ran.out.splitlines() if "val mse " in line
    ]
    assert len(set(seen)) == 4
    assert round(best["best"], 4) == min(seen)


@pytest.mark.parametrize("precision", ["bf16_true", "fp16_true"])
def test_targets_are_not_rounded_with_the_weights(train, words, precision):
    """BF16 has 2992 and 3008 and FP16 3000 and 3002, with nothing between them."""
    rows = [f"a film {i},3001" for i in range(60)]
    ran = train(
        *words("regression", rows=rows), "data.batch_size=16", "optimizer.lr=1e-9", f"precision={precision}"
    )
    assert ran.code == 0, ran.err
    assert abs(3001 - ran.record["metrics"]["test/mae"]) < 0.5  # what the untrained network says


MISTAKES = [
    (
        "regression",
        None,
        ["a,1.5", "b,two"] * 10,
        "line 3: the label 'two' is not a finite number, and data.task=regression needs one",
    ),
    (
        "regression",
        None,
        ["a,1 2", "b,1"] * 10,
        "has the label [1.0], and the first train row has 2 numbers: give all as many",
    ),
    (
        "tokens",
        None,
        [*["one two,A B"] * 50, "one two,B"],
        "the text 'one two' has 2 words and 1 label: data.task=tokens needs a label",
    ),
    (
        "tokens",
        "mlp",
        None,
        "data.task=tokens with model=mlp, which has no output for each token. Use "
        "model=bert_small, lstm, hf or",
    ),
    ("multilabel", None, ["a,", "b,"] * 10, "has no label: two or more are needed, check data.label_column"),
]


@pytest.mark.parametrize(("task", "model", "rows", "message"), MISTAKES)
def test_mistakes_are_one_line(train, words, task, model, rows, message):
    assert_refused(train(*words(task, model or "lstm", rows)), message)


def test_a_label_of_another_split_that_train_does_not_have():
    with pytest.raises(
        UserError,
        match=r"^data file f has the label 'goof', which no train row has: use one of good\. "
        r"Did you mean good\?",
    ):
        targets("multilabel", [["goof"]], ["good"], "f")
