"""Hostile and broken input: each case is answered by one line with its words, exit code 2, no traceback, and
nothing is left.

A case is a function of a folder that makes what the command needs there, and returns its words. Cases of
checkpoints are in tests/runs/test_spoiled_checkpoints.py, of printing in tests/test_printing.py, of single
keys in tests/test_messages.py.
"""

import pytest
from few_steps import FEW_STEPS
from made_data import image_folder, text_csv, text_file
from refused import assert_refused
from started import start

import mpx.bench.__main__ as bench
import mpx.compare.__main__ as compare
import mpx.deploy.__main__ as deploy
import mpx.doctor.__main__ as doctor

MLP = ["model=mlp", *FEW_STEPS, "trainer.accelerator=cpu"]
SMALL = ["data=image_folder", "data.image_size=16", "data.resize=16", "data.batch_size=8", "data.workers=0"]


def images(folder):
    image_folder(folder / "images")
    return [*MLP, *SMALL, f"data.path={folder}/images"], folder / "images" / "train" / "cat" / "0.png"


def csv(content):
    def make(folder):
        text_csv(folder / "rows.csv")
        with (folder / "rows.csv").open("ab") as file:
            file.write(content)
        return [
            "model=lstm",
            "data=text_csv",
            f"data.path={folder}/rows.csv",
            f"data.cache={folder}/cache",
            *FEW_STEPS,
        ]

    return make


def text(content):
    def make(folder):
        text_file(folder / "text.txt")
        (folder / "text.txt").write_bytes(content)
        return ["model=lstm", "data=text_file", f"data.path={folder}/text.txt", *FEW_STEPS]

    return make


def given(*words):
    return lambda folder: [*MLP, *words]


CASES = {
    "more processes than cores": (given("trainer.devices=4096"),
    "trainer.devices=4096 starts as many processes"),
    "a type that is no network": (given("model=custom", "model._target_=builtins.dict"),
    "model._target_=builtins.dict does not say which"),
    "a function that is no network": (given("model=custom", "model._target_=builtins.len"),
    "model._target_=builtins.len: missing"),
    "a row of another length": (csv(b"one,two,three\n"),
    "rows.csv, line 202: 3 columns where the header has 2"),
    "rows that are not UTF-8": (csv(b"\xff\xfe,yes\n"), "rows.csv is not UTF-8 text ("),
    "an empty text": (text(b""), "is empty: give a text file"),
    "a text that is not UTF-8": (text(b"\x80\x81"), "is not UTF-8 text ("),
    "a short text": (text(b"to be"), "is longer than the train part"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_nothing_left(train, tmp_path, monkeypatch, case):
    make, expected = CASES[case]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    assert_refused(train(*make(tmp_path)), expected)


def record(content):
    """A run whose record has this content; a folder in its place for None."""

    def make(folder):
        file = folder / "outputs" / "a" / "dense" / "seed0" / "result.json"
        file.parent.mkdir(parents=True)
        file.mkdir() if content is None else file.write_bytes(content)

    return make


def loop(folder):
    (folder / "outputs").symlink_to("outputs")


RECORDS = (
    None,
    b"",
    b"[1]",
    b"{}",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"status": "completed", "config": 5, "setting": 7}',
)
RUN = "run=outputs/a/dense/seed0"
OTHERS = [  # the command, its words, what lies in its folder, words of the line
    *((compare, ["study=a"], record(content),
    "study=a: no finished run in outputs/a") for content in RECORDS),
    *((deploy, [RUN], record(content),
    "no result.json" if content is None else "not written by this version") for content in RECORDS),
    (compare, ["study=a"], loop, "study=a: outputs/a is not there"),
    (compare, ["output_dir=/dev/null"], None, "study=default: /dev/null/default is not there."),
    (compare, ["study=" + "a" * 5000], None, "is not there"),
    (compare, ["margin=1e400"], None, "margin=inf must be a number"),
    (deploy, ["run=/etc/passwd"], None, "run=/etc/passwd has no result.json"),
    (deploy, ["run=x", "batch=-1"], None, "batch=-1 must be a whole number"),
    (bench, ["what=[]"], None, "what=[] must be one of formats"),
    (doctor, ["a=b"], None, "a=b: mpx.doctor takes no settings"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "words", "make", "expected"), OTHERS)
def test_the_other_commands(tmp_path, command, words, make, expected):
    if make is not None:
        make(tmp_path)
    done = start(command.main, tmp_path, *words)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert done.err.startswith("error: ")
    assert expected in done.err


@pytest.mark.parametrize("step", [None, "1"])
def test_the_shell_of_a_slurm_allocation(train, monkeypatch, step):
    """Lightning by itself refuses SLURM_NTASKS=4, or waits for three other processes."""
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    if step is not None:
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", step)
    ran = train(*MLP)
    assert (ran.code, ran.err) == (0, "")
