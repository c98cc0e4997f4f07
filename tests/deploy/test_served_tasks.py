"""Runs that are not judged by accuracy are served, too: regression and labels of tokens."""

import json
from pathlib import Path

import pytest
from few_steps import FEW_STEPS
from started import start

from mpx.compare.__main__ import main as compare
from mpx.compare.collect import collect
from mpx.compare.table import read_results
from mpx.deploy import backends
from mpx.deploy.__main__ import main
from mpx.train import main as train

ROWS = {
    "regression": [f"a film {'good ' * (i % 4)},{3 * (i % 4) - 0.5}" for i in range(120)],
    "tokens": [
        f"some {'good' if i % 3 else 'bad'} film{i},O {'POS' if i % 3 else 'NEG'} O" for i in range(120)
    ],
}
JUDGED = {"regression": "mse", "tokens": "f1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(task) -> the folder of its run."""
    root, made = tmp_path_factory.mktemp("tasks"), {}

    def run(task: str) -> Path:
        if task not in made:
            (root / f"{task}.csv").write_text("text,label\n" + "\n".join(ROWS[task]) + "\n")
            words = [
                "model=bert_small",
                "model.hidden_size=32",
                "model.num_heads=2",
                "model.num_layers=1",
                "data=text_csv",
            ]
            words += [
                f"data.path={root}/{task}.csv",
                "data.seq_len=8",
                "data.vocab_size=300",
                f"data.task={task}",
                "data.batch_size=16",
            ]
            words += [
                *FEW_STEPS,
                "trainer.max_epochs=4",
                "trainer.limit_train_batches=1.0",
                "trainer.limit_test_batches=1.0",
            ]
            done = start(train, root, *words, f"study={task}", "trainer.accelerator=cpu", "optimizer.lr=3e-3")
            assert done.code == 0, done.err
            (made[task],) = (path.parent for path in (root / "outputs" / task).rglob("result.json"))
        return made[task]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("task", ROWS)
def test_it_is_served_judged_and_compared(folder, task, monkeypatch, tmp_path):
    monkeypatch.setattr(backends, "BUDGET_S", 0.02)
    run, name = folder(task), f"test/{JUDGED[task]}"
    words = ["format=[fp32,int8]", "batch=[7]", "backend=onnx", "export=onnx"]
    done = start(main, tmp_path, f'run="{run}"', "accelerator=cpu", *words)
    assert done.code == 0, done.err
    record, (fp32, int8) = (
        json.loads((run / "result.json").read_text()),
        json.loads((run / "deploy.json").read_text())["rows"],
    )
    tested = {key: value for key, value in record["metrics"].items() if key.startswith("test/")}
    assert fp32["metric"] == int8["metric"] == record["metric"]
    assert fp32["metrics"] == pytest.approx(tested, rel=1e-4)
    assert int8["metrics"].keys() == tested.keys()
    assert int8["quantised_layers"]
    assert all(row["exports"]["onnx"]["metrics"] == row["metrics"] for row in (fp32, int8))
    words = f"{fp32['metrics'][name]:{'#.4g' if task == 'regression' else '.4f'}}"
    assert f"{name.replace('/', ' ')} {words} as served, {words} after training" in done.words
    card = (run / "card.md").read_text()
    assert f"test {JUDGED[task]} after training: {words}." in card
    assert f"| test {JUDGED[task]} |" in card
    assert f"| {words} |" in card
    compared(run, name, (fp32, int8))


def compared(run: Path, name: str, rows: tuple) -> None:
    study = run.parents[1]
    (found,), left_out = collect(study)
    assert left_out == []
    assert [one.metrics[name] for one in found.served] == [row["metrics"][name] for row in rows]
    assert found.served[0].accurate
    done = start(compare, study.parents[1], f"study={study.name}", "control=auto")
    assert done.code == 0, done.err
    assert "Served on" in done.words
    assert f"test {name.split('/')[1]}" in done.words
    again = read_results(study / "results.csv")
    assert [one.served for one in again] == [found.served]
