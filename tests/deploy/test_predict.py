"""predict= writes what the served model answers to a user's own texts or images."""

import csv
import json
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from documents import ROOT, lines
from started import start

from mpx.data.spec import Spec
from mpx.data.text_sets import csv_parts
from mpx.deploy import backends
from mpx.deploy.__main__ import main
from mpx.deploy.serve import answers
from mpx.system.whole_file import rows_of

QUICK = ("batch=[4,50]", "backend=eager")


def predicted(folder: Path) -> list[dict[str, str]]:
    return [row for _, row in rows_of((folder / "predictions-fp32-auto-cpu.csv").read_text())]


def test_of_texts_they_have_the_accuracy_of_the_test_set(runs, tmp_path, monkeypatch):
    """By the command of docs/deploy.md, for a file with other columns and without labels."""
    monkeypatch.setattr(backends, "BUDGET_S", 0.02)
    (line,) = (line for line in lines([ROOT / "docs" / "deploy.md"]) if "predict=" in line)
    run, predict = shlex.split(line)[3:]
    folder = tmp_path / run.removeprefix("run=")
    shutil.copytree(runs("bert"), folder)
    config = json.loads((folder / "result.json").read_text())["config"]["data"]
    texts, labels = csv_parts(SimpleNamespace(**config))["test"][1]
    with (tmp_path / "new.csv").open("w") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    done = start(main, tmp_path, run, predict, "accelerator=cpu", *QUICK)
    assert (
        f"predictions written to {folder.relative_to(tmp_path)}/predictions-fp32-auto-cpu.csv" in done.words
    )
    found = predicted(folder)
    assert [one["text"] for one in found] == texts
    right = sum(one["class"] == label for one, label in zip(found, labels, strict=True))
    (row,) = json.loads((folder / "deploy.json").read_text())["rows"]
    assert right / len(texts) == pytest.approx(row["metrics"]["test/accuracy"])
    assert all(0.5 <= float(one["probability"]) <= 1 for one in found)


def test_of_a_folder_of_images_too(deploy, tmp_path, runs):
    config = json.loads((runs("photos") / "result.json").read_text())["config"]["data"]
    _, (row,) = deploy("photos", f'predict="{config["path"]}/val"', *QUICK)
    found = predicted(deploy.folder)
    right = [one["class"] == Path(one["path"]).parent.name for one in found]
    assert len(found) == row["test_samples"] == 12
    assert sum(right) / len(right) == pytest.approx(row["metrics"]["test/accuracy"])


def test_of_a_regression():
    written = answers(["a", "b"], torch.tensor([[0.25], [-3.0]]), Spec("text", (4,), 1, task="regression"))
    assert written == "text,value\na,0.25\nb,-3\n"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "mlp",
            "new.csv",
            "predict=new.csv needs a run of data=image_folder or data=text_csv with data.task=classification or",
        ),
        ("bert", "new.csv", "data file new.csv, line 1: no column 'text' among review"),
        ("bert", "nowhere.csv", "data file nowhere.csv cannot be read (No such file or directory)"),
        ("photos", "empty", "predict=empty is no folder with images (.jpg, .png and others). Give one."),
    ],
)
def test_what_does_not_fit_is_one_line(deploy, tmp_path, name, given, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "new.csv").write_text("review\ngood\n")
    done, _ = deploy(name, f"predict={given}", *QUICK)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not (deploy.folder / "deploy.json").exists()
