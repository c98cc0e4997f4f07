"""Every mistake, and every hostile or damaged run folder, is one line and exit code 2; nothing is run or
written.
"""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from full_disk import full_disk
from started import light, start

from mpx.deploy import build
from mpx.deploy.__main__ import main

MISTAKES = [
    ([], "run is not set and has no default. Give the folder of a completed run, for example run=outputs/"),
    (["run=nowhere"], "run=nowhere has no result.json (seen from "),
    (
        ["run=.", "format=[fp32,fp64]"],
        "format=['fp32', 'fp64'] must be one of fp32, tf32, fp16, bf16, int8, fp8, or a list of these.",
    ),
    (
        ["run=.", "batch=[1,0]"],
        "batch=[1, 0] must be a whole number of at least 1 and at most 65536, or a list of these.",
    ),
    (
        ["run=.", "export=[safetensors,pt2]", "format=int8"],
        "export=pt2 is not possible with format=int8. Use format=fp32 or tf32 or fp16 or",
    ),
    (
        ["run=.", "-m"],
        "mpx.deploy has no sweeps: its keys take lists, as 'format=[fp16,int8]', and run= a "
        "pattern. Leave out -m.",
    ),
    (
        ["outputs/mlp-lr=1-x=2/seed0"],
        "'outputs/mlp-lr=1-x=2/seed0' is not a setting: write key=value, as run=FOLDER, and quote",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "message"), MISTAKES, ids=[" ".join(case[0])[:40] for case in MISTAKES]
)
def test_mistake_is_one_line_and_writes_nothing(tmp_path, overrides, message):
    done = start(main, tmp_path, *overrides)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_is_imported_for_them(tmp_path):
    light("mpx.deploy", tmp_path, ["run=nowhere"])


UNMET = [
    (["format=fp16"], "format=fp16: most CPUs have no instructions for FP16"),
    (["weights=2of4"], "weights=2of4: 2:4 kernels need a CUDA device. Use weights=auto or dense."),
    (["backend=graph"], "backend=graph: CUDA graphs need a CUDA device. Use backend=auto or eager."),
]


@pytest.mark.parametrize(("overrides", "message"), UNMET, ids=[" ".join(case[0]) for case in UNMET])
def test_a_wish_that_a_cpu_cannot_meet(deploy, overrides, message):
    refused(deploy("mlp", "batch=[4]", *overrides)[0], message)
    assert not (deploy.folder / "deploy.json").exists()


def refused(done, message):
    error = done.err.splitlines()[-1]
    assert done.code == 2
    assert error.startswith("error: ")
    assert message in error
    assert "Traceback" not in done.err
    assert done.out == ""


def test_data_that_changed_since_the_training(deploy, runs, tmp_path):
    shutil.copytree(runs("bert"), deploy.folder)
    rows = Path(json.loads((deploy.folder / "result.json").read_text())["config"]["data"]["path"]).read_text()
    (tmp_path / "b.csv").write_text(rows.replace(",yes", ",*").replace(",no", ",yes").replace(",*", ",no"))
    changed(config__data__path=str(tmp_path / "b.csv"))(deploy.folder)
    refused(
        deploy("bert")[0],
        "data are no longer those that it was trained on, so what it serves cannot be judged",
    )


class Code:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


def changed(**parts):
    """A change of result.json: config__model__family="x" sets record["config"]["model"]["family"]."""

    def change(folder):
        record = json.loads((folder / "result.json").read_text())
        for keys, value in parts.items():
            *path, last = keys.split("__")
            at = record
            for key in path:
                at = at[key]
            at[last] = value
        (folder / "result.json").write_text(json.dumps(record))

    return change


def pickled(folder):
    """A checkpoint that would run code."""
    path = folder / "checkpoints" / "last.ckpt"
    path.unlink()  # best.ckpt may be the same file
    torch.save({"state_dict": Code()}, path)


CUSTOM = {"family": "custom", "inputs": ["image"], "_target_": "os.mkdir", "kwargs": {"path": "pwned"}}
HF = {
    "family": "hf",
    "inputs": ["image", "text"],
    "name": "them/model",
    "kwargs": {"trust_remote_code": True},
}
FOLDERS = {
    "interrupted": (
        changed(status="interrupted"),
        "is interrupted, and only a completed run with its weights can be served",
    ),
    "other widths": (
        changed(config__model__widths=[8]),
        "is a checkpoint of another model: layers.0.weight is (64, 64) there",
    ),
    "code of the record's choice": (
        changed(config__model=CUSTOM),
        "runs code of os.mkdir. Confirm that by target=os.mkdir.",
    ),
    "code of the hub": (
        changed(config__model=HF),
        "a pretrained model=hf with model.kwargs cannot be served",
    ),
    "code in an argument": (
        changed(
            config__data={
                "family": "custom",
                "_target_": "os.mkdir",
                "kwargs": {"path": {"_target_": "os.rmdir"}},
            }
        ),
        "Confirm that by target=[os.mkdir,os.rmdir].",
    ),
    "no checkpoint": (
        lambda folder: (folder / "checkpoints" / "last.ckpt").unlink(),
        "has no checkpoints/last.ckpt",
    ),
    "a checkpoint with code": (
        pickled,
        "holds something other than tensors and plain values; it was not loaded.",
    ),
    "deploy.json of others": (
        lambda folder: (folder / "deploy.json").write_text("[]"),
        "deploy.json cannot be read, or was not written by mpx.",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_hostile_or_damaged_folder(deploy, runs, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    change, message = FOLDERS[case]
    shutil.copytree(runs("mlp"), deploy.folder)
    change(deploy.folder)
    refused(deploy("mlp", "batch=[4]", "backend=eager")[0], message)
    assert not (tmp_path / "pwned").exists()
    assert (deploy.folder / "deploy.json").exists() == ("deploy.json" in case)


def test_a_disk_that_became_full_does_not_hide_what_was_measured(deploy):
    done, _ = deploy("mlp", "batch=[4]", "backend=eager")
    before = {path: path.read_bytes() for path in deploy.folder.iterdir() if path.is_file()}
    with full_disk(500):
        done, _ = deploy("mlp", "batch=[8]", "backend=eager")
    assert done.code == 2
    assert "peak memory" in done.words
    assert "deploy.json (File too large). Make room there or allow it; or give" in done.err.splitlines()[-1]
    assert {path: path.read_bytes() for path in deploy.folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(("fmt", "least"), [("int8", (8, 0)), ("fp8", (8, 9))])
def test_the_first_gpu_with_8_bits(monkeypatch, fmt, least):
    gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "older")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: least)
    assert build.mode_of(fmt, gpu).name == "bf16_true"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (least[0], least[1] - 1))
    with pytest.raises(ValueError, match=f"format={fmt}: this older has no instructions for {fmt.upper()}"):
        build.mode_of(fmt, gpu)
