"""What stands in the place of a file that a command writes at its end is found at its beginning, in one
line.
"""

import shutil

import pytest
from few_steps import FEW_STEPS
from made_runs import record, write
from started import start

import mpx
import mpx.compare.__main__ as compare
import mpx.deploy.__main__ as deploy
from mpx.errors import UserError
from mpx.record.run import RunRecord
from mpx.train import main as train_main

MLP = ["model=mlp", *FEW_STEPS]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where outputs/ has a finished run, which tests leave as it is."""
    folder = tmp_path_factory.mktemp("trained")
    assert start(train_main, folder, *MLP).code == 0
    return folder


@pytest.fixture
def finished(trained, tmp_path):
    """The folder of a finished run, for this test alone."""
    shutil.copytree(trained / "outputs", tmp_path / "outputs")
    (folder,) = tmp_path.glob("outputs/*/*/seed0")
    return folder


@pytest.fixture
def unfinished(finished):
    """The folder of a run that was cut off."""
    (finished / "result.json").unlink()
    return finished


def stand(path, kind):
    """Put another kind of thing in the place of `path`, with something in it."""
    if path.exists():
        path.rename(path.with_name("aside"))
    if kind == "folder":
        path.mkdir(parents=True)
    (path / "precious" if kind == "folder" else path).write_text("precious")


WRITTEN = [
    "result.json",
    "config.yaml",
    "curves.csv",
    "predictions.json",
    "profile.csv",
    "trace.json.gz",
    ".lock",
]
IN_RUNS = [
    *((name, "folder") for name in [*WRITTEN, "checkpoints/last.ckpt", "checkpoints/best.ckpt"]),
    ("checkpoints", "file"),
]


@pytest.mark.parametrize(("name", "kind"), IN_RUNS)
def test_a_run_is_refused_before_it_trains(train, unfinished, name, kind):
    stand(unfinished / name, kind)
    for _ in range(2):  # the first has released the folder
        ran = train(*MLP, "if_exists=resume")
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert ran.err.startswith(f"error: output_dir: cannot write {unfinished / name} (")
        assert ran.err.count("\n") == 1
    assert (
        (unfinished / name / "precious") if kind == "folder" else unfinished / name
    ).read_text() == "precious"


def test_a_loop_of_ones_own_that_continues(tmp_path):
    setting = dict.fromkeys(("model", "data", "precision", "sparsity"), "a") | {"seed": 0}
    run = RunRecord("study", setting, output_dir=tmp_path, if_exists="new", metric=None, goal="max")
    folder = run.open({})
    run.close()
    (folder / "result.json").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*seed0/result\.json \(Is a directory\)"):
        run.open({}, folder)


@pytest.mark.parametrize(
    ("name", "words"), [("card.md", []), ("served", ["export=safetensors"]), ("deploy.json", [])]
)
def test_deploy_refuses_before_it_measures(finished, tmp_path, name, words):
    stand(finished / name, "file" if name == "served" else "folder")
    (finished / "checkpoints" / "last.ckpt").write_bytes(b"damaged")  # what is found later
    done = start(
        deploy.main, tmp_path, f'run="{finished}"', "batch=[1]", "backend=eager", "accelerator=cpu", *words
    )
    assert (done.code, done.out) == (2, "")
    assert str(finished / name) in done.err
    assert done.err.count("\n") == 1


COMPARED = [(name, "folder") for name in ("results.csv", "differences.csv", "report.html", "report.md")]


@pytest.mark.parametrize(("name", "kind"), [*COMPARED, ("plots", "file"), ("_report", "file")])
def test_compare_refuses_before_it_writes(tmp_path, name, kind):
    study = tmp_path / "outputs" / "a"
    write(study / "dense" / "seed0", record())
    stand(study / name, kind)
    done = start(compare.main, tmp_path, "study=a")
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith(f"error: output_dir: cannot write outputs/a/{name} (")
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in study.iterdir()) == sorted(["dense", name])


def test_a_recorder_is_refused_before_its_loop(tmp_path):
    (tmp_path / "outputs").write_text("in the way")
    setting = dict.fromkeys(("model", "data", "precision", "sparsity"), "a") | {"seed": 0}
    recorder = mpx.Recorder(study="a", setting=setting, output_dir=tmp_path / "outputs")
    with pytest.raises(UserError, match="cannot write"), recorder, recorder.step(1):
        raise AssertionError("the loop has begun")
