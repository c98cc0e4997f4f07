"""Several runs, formats and weights in one call and as a sweep: each is measured by itself, and none stops the others."""

import json
import shutil
import tempfile

import pytest
from made_runs import deployed_row
from started import start

from mpx.deploy import measure, serve
from mpx.deploy.__main__ import main
from mpx.deploy.show import show_all

ALONE = ("batch=[4,8]", "backend=eager")  # what takes the least time


@pytest.fixture
def study(runs, tmp_path, monkeypatch):
    """study(*seeds): copies of a run at tmp_path/outputs/s/a=b/seed<N>."""
    monkeypatch.setattr(measure, "BUDGET_S", 0.02)

    def make(*seeds):
        folders = [tmp_path / "outputs" / "s" / "a=b" / f"seed{seed}" for seed in seeds]
        for folder in folders:
            shutil.copytree(runs("mlp"), folder)
        return folders

    return make


def formats(folder):
    return [(row["format"], row["weights"]) for row in json.loads((folder / "deploy.json").read_text())["rows"]]


@pytest.mark.slow
def test_formats_and_weights_of_one_call(study, tmp_path):
    """What this CPU cannot serve is a line; the others are served, written and shown in one table."""
    (folder,) = study(0)
    words = ("format=[fp16,fp32,fp32]", "weights=[dense,2of4,auto]")
    done = start(main, tmp_path, 'run="outputs/s/a=b/seed0"', "accelerator=cpu", *words, *ALONE)
    assert done.code == 1
    assert formats(folder) == [("fp32", "dense"), ("fp32", "auto")]
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert errors[0].startswith("error: format=fp16: this CPU has no instructions")
    assert errors[1].startswith("error: outputs/s/a=b/seed0 format=fp32 weights=2of4: no layer of this model can be served so")
    assert "Traceback" not in done.err
    table = done.out[done.out.index("All rows of this call") :]
    rows = [line.split() for line in table.splitlines() if line.split()[:1] == ["fp32"]]
    written = json.loads((folder / "deploy.json").read_text())["rows"]
    assert [row[1].rstrip(":") for row in rows] == [row["weights"] for row in written]
    assert all(f"{row['metrics']['test/accuracy']:.4f}" in table for row in written)
    assert max(map(len, done.out.splitlines())) <= 120


def test_a_format_that_the_machine_lacks_is_refused_before_anything_is_measured(study, tmp_path):
    (folder,) = study(0)
    done = start(main, tmp_path, 'run="outputs/s/a=b/seed0"', "accelerator=cpu", "format=[fp32,fp16]", *ALONE)
    assert (done.code, formats(folder)) == (1, [("fp32", "auto")])
    first, *others = done.err.splitlines()
    assert first.startswith("error: format=fp16: this CPU has no instructions for FP16")
    assert all(line.startswith("measuring ") for line in others)


def test_an_export_that_a_format_does_not_have_stops_no_other_format(study, tmp_path):
    (folder,) = study(0)
    words = ("format=[int8,fp32]", "export=[safetensors,pt2]")
    done = start(main, tmp_path, 'run="outputs/s/a=b/seed0"', "accelerator=cpu", *words, *ALONE)
    assert (done.code, formats(folder)) == (1, [("fp32", "auto")])
    first, *others = done.err.splitlines()
    assert first.startswith("error: format=int8: export=pt2 is not possible with format=int8. Use export=safetensors or onnx, or")
    assert all(line.startswith("measuring ") for line in others)


@pytest.mark.slow
def test_every_run_of_a_study(study, tmp_path):
    good, damaged = study(0, 1)
    (damaged / "result.json").write_text("{")
    done = start(main, tmp_path, "run=outputs/s/*/seed*", "accelerator=cpu", "format=[fp32,tf32]", *ALONE)
    assert (done.code, formats(good)) == (1, [("fp32", "auto")])
    assert "error: run=outputs/s/a=b/seed1: result.json was not written by this version" in done.err
    assert not (damaged / "deploy.json").exists()


@pytest.mark.slow
def test_a_sweep(study, tmp_path, monkeypatch):
    """It goes on behind a wish that cannot be met and behind one that is no wish, and leaves nothing where it was started."""
    aside = tmp_path / "aside"
    aside.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(aside))
    folders = study(0, 1)
    runs = ",".join(f'"outputs/s/a=b/{folder.name}"' for folder in folders)
    done = start(main, tmp_path, f"run={runs},nowhere", "accelerator=cpu", "format=fp64,fp32", *ALONE, "--multirun")
    assert done.code == 1
    assert [formats(folder) for folder in folders] == [[("fp32", "auto")]] * 2
    errors = [line for line in done.err.splitlines() if not line.startswith("measuring ")]
    assert len(errors) == 4
    assert all(line.startswith(("error: format=fp64 must be one of", "error: run=nowhere is not a folder")) for line in errors)
    table = done.out[done.out.index("All rows of this call") :]
    assert all(folder.name in table for folder in folders)
    assert list(aside.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"outputs", "aside"}


@pytest.mark.slow
def test_a_sweep_in_which_all_goes_well(study, tmp_path):
    study(0)
    assert start(main, tmp_path, "-m", 'run="outputs/s/a=b/seed0"', "accelerator=cpu", "weights=dense,auto", *ALONE).code == 0


def test_no_size_is_zero(capsys):
    rows = [("a", deployed_row(weights_gib=size / 2**30)) for size in (3_000, 3_000_000, 3 * 2**30)]
    show_all(rows)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "graph" in line] == ["0.0029", "2.86", "3,072.00"]


def test_the_table_of_folders_named_from_here_and_from_the_root(tmp_path, monkeypatch, capsys):
    """As of a sweep -m run=outputs/s/a,/elsewhere/b."""
    monkeypatch.chdir(tmp_path)
    show_all([("outputs/s/a", deployed_row()), (str(tmp_path / "outputs" / "b"), deployed_row())])
    printed = capsys.readouterr().out
    assert "run in outputs" in printed
    assert [line.split()[0] for line in printed.splitlines() if "graph" in line] == ["s/a", "b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.param(ZeroDivisionError, marks=pytest.mark.slow)])
def test_what_was_measured_before_the_call_ended_stays(study, tmp_path, monkeypatch, error):
    (folder,) = study(0)
    measured, called = serve._measured, []

    def once(*args):
        called.append(args)
        if len(called) == 2:
            raise error
        return measured(*args)

    monkeypatch.setattr(serve, "_measured", once)
    words = ('run="outputs/s/a=b/seed0"', "accelerator=cpu", "weights=[dense,auto]", *ALONE)
    if error is KeyboardInterrupt:
        assert start(main, tmp_path, *words).code == 130
    else:
        with pytest.raises(error):
            start(main, tmp_path, *words)
    assert formats(folder) == [("fp32", "dense")]
    assert (folder / "card.md").is_file()
