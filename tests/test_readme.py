"""Every command and script in README.md and docs/ runs: as written, with overrides that shorten it.

Commands that need files of the reader compose their configuration. Sweeps and what starts other processes run
in a process of their own, as does one command of each kind; the others run in this one.
"""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch

import pytest
from documents import PAGES, README, ROOT, blocks, lines, section, text
from few_steps import FEW_STEPS
from processes import Fork

RUN_FOLDER = ROOT / "docs" / "run-folder.md"
PYTHON = ROOT / "docs" / "python.md"
SET_UP = [
    "pip install -e . && python -m mpx.train precision=amp sparsity=2of4",
    "pip install -e '.[test]' && pytest",
]
HELP = "python -m mpx.train --help"
DOCTOR = "python -m mpx.doctor"
SERVING = "pip install -e '.[deploy]'"
SWEEP = "python -m mpx.train -m study=formats seed=0,1,2 precision=fp32,amp_bf16"
LOOKS = "python -m mpx.train -m study=looks precision=fp32,amp_bf16 until=decided until.margin=0.005"
NEEDS_FILES = ("DIR", "reviews.csv")
SCRIPTS = {  # its file: what it holds
    "my_net.py": "class Net",
    "my_data.py": "def make_data",
    "checkpoint.pt": "import amp",
    "pruned.pt": "import ASP",
}


def commands(module):
    return [line for line in lines() if line.startswith(f"python -m mpx.{module} ")]


FIRST = [line for line in blocks("bash", [README])[2].splitlines() if line != SERVING]  # README's first study
FILES = [line for line in commands("train") if any(word in line for word in NEEDS_FILES)]
DISTRIBUTED = [line for line in commands("train") if "trainer.devices=2" in line]
TRAINING = [
    line for line in commands("train") if line not in (*FILES, *DISTRIBUTED, *FIRST, HELP, SWEEP, LOOKS)
]


def slow_unless_in_readme(commands):
    return [
        pytest.param(line, marks=() if line in lines([README]) else pytest.mark.slow) for line in commands
    ]


def script(made):
    (found,) = (block for block in blocks("python") if SCRIPTS[made] in block)
    return found


def words(line):
    return shlex.split(line)[3:]


def in_own_process(line, folder, *more):
    return subprocess.run(
        [sys.executable, *shlex.split(line)[1:], *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_no_other_kind_of_command_or_script():
    known = {
        *SET_UP,
        SERVING,
        *FIRST,
        *(line for line in lines() if line.startswith("tensorboard --logdir ")),
        HELP,
        SWEEP,
        LOOKS,
        *TRAINING,
        *FILES,
        *DISTRIBUTED,
        *commands("bench"),
        *commands("compare"),
        *commands("deploy"),
        DOCTOR,  # tests/test_doctor.py
        *lines([PYTHON]),  # tests/test_scripts.py
    }
    assert set(lines()) == known
    assert len(blocks("python")) == len(SCRIPTS) + len(blocks("python", [PYTHON]))
    assert {
        language for page in PAGES for language in re.findall(r"^```(\w+)", text(page), re.MULTILINE)
    } == {"bash", "python"}


def test_help(command):
    ran = command(*words(HELP))
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("line", FILES)
def test_command_on_files_of_the_reader_composes(train, line):
    # Hydra shows no configuration of a sweep
    ran = train("--cfg", "job", *(word for word in words(line) if word != "-m"))
    assert ran.code == 0, ran.err
    named = [word.partition("=")[2] for word in words(line) if word.startswith(("study=", "experiment="))]
    assert f"study: {named[0] if named else 'default'}" in ran.out


@pytest.mark.parametrize("line", slow_unless_in_readme(TRAINING))
def test_command_trains(train, tmp_path, monkeypatch, line):
    for own in ("my_net.py", "my_data.py"):
        (tmp_path / own).write_text(script(own))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ran = train(*words(line), *FEW_STEPS)
    assert ran.code == 0, ran.err
    assert ran.record["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("line", DISTRIBUTED)
def test_command_trains_on_several_devices(command, line):
    ran = command(*words(line), *FEW_STEPS, "model=mlp")
    assert ran.code == 0, ran.err
    assert ran.record["status"] == "completed"


def test_the_default_job_leaves_what_the_pages_say(train):
    ran = train(*words(SET_UP[0].split(" && ")[1]), *FEW_STEPS)
    assert ran.code == 0, ran.err
    written = {
        path.relative_to(ran.folder).as_posix() for path in ran.folder.rglob("*") if path.is_file()
    } - {".lock"}
    described = re.findall(r"^\| `([^|]*)` \|", section(RUN_FOLDER, "# A run's folder"), re.MULTILINE)
    patterns = [name for row in described for name in row.split("`, `")]
    assert {"result.json", "config.yaml", "checkpoints/last.ckpt"} <= written
    assert [name for name in written if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_every_field_of_a_record_is_described(train):
    ran = train("model=mlp", *FEW_STEPS)
    parts = ("speed", "memory", "precision", "sparsity", "environment")
    fields = {part: {key for key in ran.record[part] if not key.endswith("reason")} for part in parts}
    fields["sparsity"] |= {"sensitivity", "permutation"}  # of a pruned run
    fields["speed"].discard("mfu_reference")  # there where the limit is known
    described = {part: rows(section(RUN_FOLDER, f"### {part}")) for part in parts}
    assert described == fields
    assert set(ran.record) <= rows(section(RUN_FOLDER, "## result.json"))


def rows(markdown):
    """The names in the first column."""
    return {
        name
        for row in re.findall(r"^\| (`.*?`) \|", markdown, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    sweep = Fork(*words(SWEEP), *FEW_STEPS, folder=folder)
    assert sweep.wait() == 0, sweep.err
    return folder


@pytest.mark.slow
def test_the_sweep_trains_every_combination(swept):
    assert len(list(swept.glob("outputs/formats/*/seed*/result.json"))) == 6


@pytest.mark.slow
def test_the_sweep_that_trains_until_decided_stops_by_itself(forked):
    """By its first look: no difference is as large as this margin."""
    ran = forked(*words(LOOKS), "until.max_seeds=8", "until.looks=2", "until.margin=0.9", *FEW_STEPS)
    assert ran.code == 0, ran.err
    assert len(ran.folders) == 8
    assert "\nlook 1 of 2, at 4 seeds, resnet20 on digits" in ran.out
    assert json.loads((ran.folders[0] / "result.json").read_text())["config"]["until"]["looks"] == 2


@pytest.mark.slow
def test_compare_commands(swept, monkeypatch, capsys):
    """The first in a process of its own; it writes the results.csv that the last reads."""
    first, *others = [line for line in commands("compare") if "study=formats" in line or "results=" in line]
    done = in_own_process(first, swept)
    assert (done.returncode, done.stderr) == (0, "")
    assert (swept / "outputs" / "formats" / "results.csv").is_file()
    outs = [done.stdout, *(in_this_process("compare", line, swept, monkeypatch, capsys) for line in others)]
    assert all("resnet20 on digits" in out for out in outs)


@pytest.mark.parametrize("line", slow_unless_in_readme(commands("bench")))
def test_bench_command(tmp_path, monkeypatch, capsys, line):
    in_this_process("bench", line, tmp_path, monkeypatch, capsys, "size=64", "accelerator=cpu")
    (what,) = re.findall(r"what=(\w+)", line)
    assert (tmp_path / "outputs" / "bench" / f"{what}.csv").is_file()


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """The folder of a run of a moment."""
    folder = tmp_path_factory.mktemp("dense")
    run = Fork("model=mlp", "precision=fp32", *FEW_STEPS, folder=folder)
    assert run.wait() == 0, run.err
    return next(folder.glob("outputs/default/*/seed0"))


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in commands("deploy") if "predict=" not in line])
def test_deploy_command(dense, train, tmp_path, monkeypatch, capsys, line):
    """On a run of a moment, at the place that the command names, or on the checkpoint of one; without the
    compiler, which tests/deploy has.

    The run is of an MLP, which is exported in a fifth of the time, where the command does not say which model
    it is.
    """
    given = dict(word.split("=", 1) for word in words(line))
    monkeypatch.chdir(tmp_path)
    trained = dense
    if "model" in given:
        (tmp_path / "my_net.py").write_text(script("my_net.py"))
        monkeypatch.syspath_prepend(tmp_path)
        trained = train(
            *[word for word in words(line) if word.lstrip("+").startswith(("model", "data"))], *FEW_STEPS
        ).folder
    if run := given.get("run", "").replace("*", "any"):
        shutil.copytree(trained, tmp_path / run)
    else:
        shutil.copyfile(trained / "checkpoints" / "last.ckpt", tmp_path / given["ckpt"])
    monkeypatch.setattr("mpx.deploy.backends.BUDGET_S", 0.02)
    backend = [] if "backend" in given else ["backend=onnx" if "int8" in line else "backend=eager"]
    in_this_process("deploy", line, tmp_path, monkeypatch, capsys, "accelerator=cpu", *backend)
    assert (tmp_path / (run or given.get("out", "weights.pt-served")) / "deploy.json").is_file()


def in_this_process(module, line, folder, monkeypatch, capsys, *more):
    """What it printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [f"mpx.{module}", *words(line), *more])
    capsys.readouterr()
    # ends by SystemExit only where it fails
    importlib.import_module("mpx.train" if module == "train" else f"mpx.{module}.__main__").main()
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_first_study(tmp_path):
    """As typed. Where nothing else uses the CPU, and it has BF16, its speeds count, too."""
    trained, served, compared = (
        subprocess.run([sys.executable, *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True, text=True)
        for line in FIRST
    )
    assert (trained.returncode, served.returncode, compared.returncode) == (0, 0, 0), trained.stderr
    assert len(list(tmp_path.glob("outputs/first/*/seed*/result.json"))) >= 16
    assert "at no loss of accuracy (" in compared.stdout
    assert "INT8" in compared.stdout


def test_the_verdicts_that_are_shown_were_measured():
    cards = [text(ROOT / "experiments" / name / "README.md") for name in ("grid", "first")]
    for verdict, card in zip(re.findall(r"^> (.*)$", text(README), re.MULTILINE), cards, strict=True):
        assert f"\n{verdict}\n" in card.replace("**", "").replace("\\_", "_")  # its first sentence is bold


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")  # Trainer pins memory on a CPU too
@pytest.mark.parametrize(
    "study",
    [pytest.param("python", marks=pytest.mark.slow), pytest.param("loops", marks=pytest.mark.slow), "hf"],
)
def test_script_from_python(tmp_path, monkeypatch, capsys, study):
    if study == "hf":
        pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
        monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.chdir(tmp_path)
    (found,) = (
        block for block in blocks("python", [PYTHON]) if f'"{study}"' in block or f"study={study}" in block
    )
    exec(compile(found, study, "exec"), {"__name__": "__main__"})
    records = [json.loads(file.read_text()) for file in tmp_path.glob(f"outputs/{study}/*/seed*/result.json")]
    assert [record["status"] for record in records] == ["completed"] * {"python": 4, "loops": 6, "hf": 1}[
        study
    ]
    assert study == "hf" or "no loss" in capsys.readouterr().out


@pytest.mark.parametrize("saved", ["checkpoint.pt", "pruned.pt"])
def test_script_for_apex(tmp_path, monkeypatch, saved):
    monkeypatch.chdir(tmp_path)
    exec(compile(script(saved), saved, "exec"), {"__name__": "__main__"})
    assert (tmp_path / saved).is_file()
