"""Every mistake, and every hostile or damaged run folder, is one line and exit code 2; nothing is run or written."""

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
from mpx.deploy.backends import backends

MISTAKES = [
    ([], "run is not set and has no default. Give the folder of a completed run, for example run=outputs/"),
    (["run=nowhere"], "run=nowhere is not a folder (seen from "),
    ([f"run={'x' * 300}"], "is not a folder (seen from "),
    (["run=."], "run=. has no result.json"),
    (
        ["run=.", "format=fp64"],
        "format=fp64 must be one of fp32, tf32, fp16, bf16, int8, fp8, or a list of these. For example format=fp32.",
    ),
    (["run=.", "weights=sparse"], "weights=sparse must be one of auto, dense, 2of4, or a list of these."),
    (["run=.", "weights=[]"], "weights=[] must be one of auto, dense, 2of4, or a list of these."),
    (["run=.", "format=[fp32,fp64]"], "format=['fp32', 'fp64'] must be one of"),
    (['run="a","b"'], 'run="a","b" gives several values to a single run. Start a sweep with python -m mpx.deploy -m.\n'),
    (["run=nowhere/*/seed*"], "run=nowhere/*/seed* matches no folder (seen from "),
    (["run=.", "backend=trt"], "backend=trt must be one of auto, eager, compile, autotune, graph, tensorrt, onnx."),
    (["run=.", "batch=[]"], "batch=[] must be a whole number of at least 1, or a list of these. For example batch=[1,64,256]."),
    (["run=.", "batch=[1,0]"], "batch=[1, 0] must be a whole number of at least 1, or a list"),
    (["run=.", "batch=[a]"], "batch=['a'] must be a whole number of at least 1, or a list"),
    (["run=.", "batch=0"], "batch=0 must be a whole number of at least 1, or a list"),
    (["run=.", "target=[]"], "target=[] must be a text, or null; or a list of at least 1, each a text."),
    (["run=.", "accelerator=tpu"], "accelerator=tpu must be one of auto, cpu, gpu."),
    (["run=.", "export=tflite"], "export=tflite must be one of safetensors, pt2, onnx; or a list, each one of safetensors, pt2, onnx."),
    (["run=.", "export=[pt2,x]"], "export=['pt2', 'x'] must be one of safetensors, pt2, onnx; or a list"),
    (
        ["run=.", "export=[safetensors,onnx]", "format=bf16"],
        "export=onnx is not possible with format=bf16. Use export=safetensors or pt2, or format=fp32 or tf32 or int8.",
    ),
    (["run=.", "export=pt2", "format=int8"], "export=pt2 is not possible with format=int8. Use export=safetensors or onnx, or"),
    (["run=.", "finetune.epochs=-1"], "finetune.epochs=-1 must be a number of at least 0. For example finetune.epochs=1."),
    (["run=.", "finetune.lr_share=0"], "finetune.lr_share=0 must be a number above 0."),
    (["run=.", "finetune.lr_share=0.1"], "finetune.lr_share=0.1 has no meaning for finetune.epochs=0, which fine-tunes nothing. Leave it"),
    (["run=.", "finetune={lr_share:0.1}"], "finetune.lr_share=0.1 has no meaning for finetune.epochs=0, which fine-tunes nothing."),
    (["-m", "run=.", "finetune.lr_share=0.1"], "run=. has no result.json"),  # another job of a sweep may read it
    (["run=.", "finetune=1"], "finetune=1: finetune is not a single value. Set its keys, as finetune.epochs=VALUE."),
    (["run=.", "finetune.epochs=1"], "finetune.epochs=1 is for formats of 8 bits, and format=fp32 is none. Use format=int8 or fp8, or"),
    (["run=.", "formt=fp16"], "formt: no such key. Did you mean format? python -m mpx.deploy --help lists them all."),
    (["run=.", "format=fp16,bf16"], "Start a sweep with python -m mpx.deploy -m, or write a list as format=[…]."),
    (["run=.", "-m", "formt=fp16,bf16"], "formt: no such key. Did you mean format?"),
    (["run=outputs/lr=1/seed0"], "run=outputs/lr=1/seed0 is not a folder (seen from "),
    (["run=outputs/w=[8,8]/seed0"], """as 'run="outputs/w=[8,8]/seed0"'."""),
    (["outputs/mlp-lr=1-x=2/seed0"], "'outputs/mlp-lr=1-x=2/seed0' is not a setting: write key=value, as run=FOLDER."),
    (["run=a/lr=1,b/lr=2"], """as 'run="a/lr=1","b/lr=2"'."""),
    (["run=[a/lr=1, b]"], """as 'run=["a/lr=1","b"]'."""),
    (["-m", "run=.", "hydra/launcher=joblib"], "hydra/launcher: mpx.deploy measures one after another"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=[" ".join(case[0])[:40] for case in MISTAKES])
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
    (["format=tf32"], "format=tf32: this CPU has no instructions for TF32"),
    (["format=fp16"], "format=fp16: this CPU has no instructions for FP16"),
    (["format=fp8"], "format=fp8: this CPU has no instructions for FP8"),
    (["format=int8", "backend=eager"], "backend=eager: on a CPU, INT8 products are ONNX Runtime's."),
    (["weights=2of4"], "weights=2of4: no layer of this model can be served so (layers.0: needs a CUDA device)."),
    (["backend=graph"], "backend=graph: CUDA graphs need a CUDA device. Use backend=auto or eager."),
    (["backend=tensorrt"], "backend=tensorrt: TensorRT needs a CUDA device. Use backend=auto or eager."),
    (["batch=[4,2000000000]"], "batch=[4, 2000000000]: a batch of 2000000000 needs more memory than there is. Lower batch=."),
    (["target=my_net.Net"], "target=my_net.Net is for runs with model=custom or data=custom that import it, as run="),
]


@pytest.mark.parametrize(("overrides", "message"), UNMET, ids=[" ".join(case[0]) for case in UNMET])
def test_a_wish_that_a_cpu_cannot_meet(deploy, overrides, message):
    refused(deploy("mlp", "batch=[4]", *overrides)[0], message)
    assert not (deploy.folder / "deploy.json").exists()


def test_a_batch_whose_activations_do_not_fit(deploy, monkeypatch):
    """Its inputs take 7.7 MB, and with the first layer's outputs twice as much."""
    monkeypatch.setattr("mpx.deploy.serve.memory_bytes", lambda: 10_000_000)
    message = "batch=[4, 30000]: a batch of 30000 needs more memory than there is. Lower batch=."
    refused(deploy("mlp", "batch=[4,30000]")[0], message)


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
    refused(deploy("bert")[0], "the train, val and test data are no longer those that it was trained on, so what it serves cannot be")


def test_a_gpu_that_is_not_there(deploy, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    refused(deploy("mlp", "accelerator=gpu")[0], "accelerator=gpu: no CUDA device is visible here.")


def test_no_compiler(monkeypatch):
    monkeypatch.setattr("mpx.deploy.backends.builds_kernels", lambda device: False)
    assert "compile" not in backends("auto", "fp32", torch.device("cpu"))
    with pytest.raises(ValueError, match="finds no compiler"):
        backends("compile", "fp32", torch.device("cpu"))


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


def checkpoint(**parts):
    """A change of the top level of last.ckpt."""

    def change(folder):
        path = folder / "checkpoints" / "last.ckpt"
        torch.save(torch.load(path) | parts, path)

    return change


def pickled(folder):
    """A checkpoint that would run code."""
    path = folder / "checkpoints" / "last.ckpt"
    path.unlink()  # best.ckpt may be the same file
    torch.save({"state_dict": Code()}, path)


def cut(folder):
    path = folder / "checkpoints" / "last.ckpt"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def flipped(folder):
    """A checkpoint in which bytes of its index are others."""
    path = folder / "checkpoints" / "last.ckpt"
    content = bytearray(path.read_bytes())
    path.unlink()
    at = content.index(b"PK\x01\x02")  # the first entry of the directory
    content[at + 20 : at + 28] = b"\xff" * 8  # its sizes
    path.write_bytes(content)


def other_masks(folder):
    path = folder / "checkpoints" / "last.ckpt"
    saved = torch.load(path)
    for masks in saved["callbacks"]["Pruning"]["masks"].values():
        masks.resize_(1)
    torch.save(saved, path)


def instead(name, make):
    """`make(path)` makes what takes the place of a file."""

    def change(folder):
        path = folder / name
        path.unlink(missing_ok=True)
        make(path)

    return change


LAST_CKPT = "checkpoints/last.ckpt"
CUSTOM = {"family": "custom", "inputs": ["image"], "_target_": "os.mkdir", "kwargs": {"path": "pwned"}}
HF = {"family": "hf", "inputs": ["image", "text"], "name": "them/model", "kwargs": {"trust_remote_code": True}}
DAMAGED = "was not written by this version of mpx, or is damaged"
FOLDERS = {
    "other json": (lambda folder: (folder / "result.json").write_text('{"status": "completed"}'), DAMAGED),
    "another schema": (changed(schema_version=99), DAMAGED),
    "no setting": (changed(setting=[]), DAMAGED),
    "no config": (changed(config=None), DAMAGED),
    "config is a list": (changed(config__model=[]), DAMAGED),
    "a metric in words": (changed(metrics={"test/accuracy": "0.9"}), DAMAGED),
    "escape codes": (changed(status="\x1b[31mcompleted"), DAMAGED),
    "interrupted": (changed(status="interrupted"), "its run is interrupted, and only a completed one can be served"),
    "diverged": (changed(status="diverged"), "its run is diverged"),
    "another family": (changed(config__model__family="nosuch"), "seed0: result.json: model.family=nosuch must be one of"),
    "no family": (
        changed(config__model={}),
        "model.family is not set and has no default. These settings come from that file alone. Put back the data or code",
    ),
    "no batch size": (changed(config__data__batch_size=None), "seed0: result.json: data.batch_size=null must be"),
    "a key is missing": (changed(config__model={"family": "mlp", "inputs": ["image", "text"]}), "is damaged (KeyError: 'widths')"),
    "other widths": (changed(config__model__widths=[8]), "is a checkpoint of another model: layers.0.weight is (64, 64) there"),
    "code of the record's choice": (changed(config__model=CUSTOM), "has model._target_=os.mkdir. Importing it runs its code"),
    "code of the hub": (changed(config__model=HF), "a pretrained model=hf with model.kwargs cannot be served"),
    "code in data": (changed(config__data___target_="os.mkdir"), "data._target_ is for data=custom"),
    "code of the hub, and a name": (
        changed(config__model=HF | {"name": "bert", "pretrained": "them/model"}),
        "a pretrained model=hf with model.kwargs cannot be served",
    ),
    "data of the record's choice": (
        changed(config__data={"family": "custom", "_target_": "os.mkdir", "kwargs": {"path": "pwned"}}),
        "has data._target_=os.mkdir. Importing it runs its code: confirm that by target=os.mkdir.",
    ),
    "code in an argument": (
        changed(config__data={"family": "custom", "_target_": "os.mkdir", "kwargs": {"path": {"_target_": "os.rmdir"}}}),
        "Importing it runs its code: confirm that by target=[os.mkdir,os.rmdir].",
    ),
    "model and data of the record's choice": (
        changed(config__model=CUSTOM, config__data={"family": "custom", "_target_": "os.rmdir", "kwargs": {"path": "pwned"}}),
        "Importing it runs its code: confirm that by target=[os.mkdir,os.rmdir].",
    ),
    "code in arguments": (
        changed(config__model={"family": "timm", "name": "resnet10t", "inputs": ["image"], "kwargs": {"_target_": "os.mkdir"}}),
        "_target_",
    ),
    "more values than memory": (
        changed(
            config__data__name="synthetic",
            config__data__kind="image",
            config__data__shape=[3, 9999999, 9999999],
            config__data__classes=10,
            config__data__samples=64,
        ),
        "data.shape=[3, 9999999, 9999999] with data.samples=64 takes ",
    ),
    "more weights than memory": (changed(config__model__widths=[2**31 - 1, 2**31 - 1]), "is damaged (RuntimeError"),
    "too large": (lambda folder: os.truncate(folder / "result.json", 2**40), DAMAGED),
    "a pipe for a record": (instead("result.json", os.mkfifo), "has no result.json"),
    "zeros for a record": (instead("result.json", lambda path: path.symlink_to("/dev/zero")), "has no result.json"),
    "a pipe for a checkpoint": (instead(LAST_CKPT, os.mkfifo), "has no checkpoints/last.ckpt"),
    "zeros for a checkpoint": (instead(LAST_CKPT, lambda path: path.symlink_to("/dev/zero")), "has no checkpoints/last.ckpt"),
    "a folder for a checkpoint": (instead(LAST_CKPT, os.mkdir), "has no checkpoints/last.ckpt"),
    "a loop for a checkpoint": (instead(LAST_CKPT, lambda path: path.symlink_to(path.name)), "has no checkpoints/last.ckpt"),
    "a pipe for deploy.json": (instead("deploy.json", os.mkfifo), "deploy.json was not written by mpx, or is damaged"),
    "bytes of the index": (flipped, "cannot be read, it is damaged or no checkpoint"),
    "no data": (changed(config__data={}), "seed0: result.json: data.name is not set"),
    "data elsewhere": (
        changed(config__data__name="mnist", config__data__root="nowhere", config__data__download=False),
        ". These settings come from that file alone. Put back the data or code that it names, start mpx.deploy where the training was",
    ),
    "averages that are not there": (changed(config__trainer__ema_decay=0.9), "is damaged (KeyError: 'Ema')"),
    "no checkpoint": (lambda folder: (folder / "checkpoints" / "last.ckpt").unlink(), "has no checkpoints/last.ckpt"),
    "half a checkpoint": (cut, "cannot be read, it is damaged or no checkpoint"),
    "a checkpoint with code": (pickled, "holds something other than tensors and plain values; it was not loaded."),
    "weights that are none": (
        checkpoint(state_dict={"layers.0.weight": "x"}),
        "is a checkpoint of another model: layers.0.weight is a str there",
    ),
    "no weights": (checkpoint(state_dict=None), "is not a training checkpoint of mpx"),
    "deploy.json of others": (
        lambda folder: (folder / "deploy.json").write_text("[]"),
        "deploy.json was not written by mpx, or is damaged",
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


@pytest.mark.parametrize(
    ("name", "message"),
    [("result.json", "result.json cannot be read (Permission denied), so how its run ended is unknown."), (LAST_CKPT, "cannot be read")],
)
def test_a_file_that_may_not_be_read(deploy, runs, name, message):
    shutil.copytree(runs("mlp"), deploy.folder)
    (deploy.folder / name).chmod(0)
    if os.access(deploy.folder / name, os.R_OK):
        pytest.skip("root may read everything")
    refused(deploy("mlp", "batch=[4]", "backend=eager")[0], message)


def test_a_disk_that_became_full_does_not_hide_what_was_measured(deploy):
    done, _ = deploy("mlp", "batch=[4]", "backend=eager")
    before = {path: path.read_bytes() for path in deploy.folder.iterdir() if path.is_file()}
    with full_disk(500):
        done, _ = deploy("mlp", "batch=[8]", "backend=eager")
    assert done.code == 2
    assert "dense, eager" in done.words
    assert done.err.splitlines()[-1].endswith(": cannot write deploy.json there (File too large). Make room there, or allow it.")
    assert {path: path.read_bytes() for path in deploy.folder.iterdir() if path.is_file()} == before


def test_what_is_not_needed_is_not_read(deploy, runs, tmp_path):
    """The weights that were tested are served, whatever the folder says of masks, or of code for a model that has none."""
    shutil.copytree(runs("mlp"), deploy.folder)
    other_masks(deploy.folder)
    changed(config__model___target_="os.mkdir", config__model__kwargs={"path": "pwned"})(deploy.folder)
    done, (row,) = deploy("mlp", "batch=[64]", "backend=eager")
    assert done.code == 0, done.err
    tested = json.loads((deploy.folder / "result.json").read_text())["metrics"]
    assert row["metrics"]["test/accuracy"] == tested["test/accuracy"]
    assert not (tmp_path / "pwned").exists()


def test_a_gpu_without_the_format(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "V100")
    with pytest.raises(ValueError, match="format=bf16: this V100 has no instructions for BF16"):
        build.mode_of("bf16", SimpleNamespace(type="cuda"))


@pytest.mark.parametrize(("fmt", "least"), [("int8", (8, 0)), ("fp8", (8, 9))])
def test_the_first_gpu_with_8_bits(monkeypatch, fmt, least):
    gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "older")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: least)
    assert build.mode_of(fmt, gpu).name == "bf16_true"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (least[0], least[1] - 1))
    with pytest.raises(ValueError, match=f"format={fmt}: this older has no instructions for {fmt.upper()}"):
        build.mode_of(fmt, gpu)
