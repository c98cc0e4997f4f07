"""docs/your-project.md, done as a new user would: in a new folder, in the order of the page."""

import json
import shlex

import pytest
from documents import ROOT, blocks, lines, text
from processes import Fork
from started import start

from mpx.compare.__main__ import main as compare

PAGE = ROOT / "docs" / "your-project.md"


def train(line, folder):
    """What a command of mpx.train prints."""
    run = Fork(
        *shlex.split(line)[3:], folder=folder, env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    )
    assert run.wait() == 0, run.out + run.err
    return run.out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's advice to the project
def test_the_page_from_top_to_bottom(tmp_path, monkeypatch):
    project, parts = blocks("python", [PAGE])
    (tmp_path / "segmenter.py").write_text(project)
    one, sweep, verdict = lines([PAGE])
    assert "val/dice" in train(one, tmp_path)
    train(sweep, tmp_path)
    assert len(list(tmp_path.glob("outputs/segments/*/seed*/result.json"))) == 4
    assert "val dice" in start(compare, tmp_path, *shlex.split(verdict)[3:]).words
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(parts, "parts", "exec"), {"__name__": "__main__"})
    (record,) = tmp_path.glob("outputs/mine/Segmenter-Squares-amp-2of4/seed0/result.json")
    assert json.loads(record.read_text())["status"] == "completed"


def test_its_file_composes(train, tmp_path, monkeypatch):
    (made,) = (block for block in text(PAGE).split("```") if "defaults: [custom]" in block)
    (tmp_path / "conf" / "project").mkdir(parents=True)
    (tmp_path / "conf" / "project" / "mine.yaml").write_text(made)
    monkeypatch.chdir(tmp_path)
    ran = train("--cfg", "job", "--config-dir", "conf", "project=mine")
    assert ran.code == 0, ran.err
    assert "width: 32" in ran.out
