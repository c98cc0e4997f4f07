"""docs/your-project.md, done as a new user would: in a new folder, in the order of the page."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from documents import ROOT, blocks, lines, text

PAGE = ROOT / "docs" / "your-project.md"


def start(words, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=170, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_page_from_top_to_bottom(tmp_path):
    project, parts = blocks("python", [PAGE])
    (tmp_path / "segmenter.py").write_text(project)
    one, sweep, compare = lines([PAGE])
    assert "val/dice" in start(shlex.split(one)[1:], tmp_path)
    start(shlex.split(sweep)[1:], tmp_path)
    assert len(list(tmp_path.glob("outputs/segments/*/seed*/result.json"))) == 4
    assert "val dice" in start(shlex.split(compare)[1:], tmp_path)
    start(["-c", parts], tmp_path)
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
