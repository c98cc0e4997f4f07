"""Runs that cannot finish: one line and the right exit code; no folder where training never began, else a
result.json that says why.
"""

import errno
import os
import pickle
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from few_steps import FEW_STEPS
from full_disk import full_disk
from omegaconf import OmegaConf
from refused import assert_refused

from mpx.errors import UserError
from mpx.measure.throughput import Throughput
from mpx.runs.folder import LOCK
from mpx.training.outcome import explain

MLP = ["model=mlp", *FEW_STEPS]


def assert_failed(ran, message, status="failed", code=1):
    assert message in ran.err, ran.err
    assert ran.code == code
    assert "Traceback" not in ran.err
    assert ran.record["status"] == status
    assert message in ran.record["error"]
    assert ran.record["environment"]["command"].startswith("python")
    assert ran.record.keys() >= {"setting", "config", "metrics", "speed", "memory", "precision", "sparsity"}


def test_a_mistake_does_not_cost_the_run_that_was_to_be_overwritten(train, tmp_path):
    first = train(*MLP)

    def state():  # without the lock, which some versions of filelock write again
        return {path: path.stat().st_mtime_ns for path in first.folder.rglob("*") if path.name != LOCK}

    before = state()
    ran = train(*MLP, "if_exists=overwrite", f"ckpt_path={__file__}")
    assert ran.code == 2
    assert "damaged or no checkpoint" in ran.err
    assert state() == before
    assert train(*MLP, "if_exists=overwrite").code == 0
    assert ran.folder == first.folder


def test_divergence(train):
    ran = train(*MLP, "optimizer=sgd", "optimizer.lr=1e30")
    assert_failed(
        ran, "the loss became infinite or NaN by step 2 (epoch 0, optimizer.lr=1e+30)", "diverged", 3
    )
    assert ran.record["precision"]["optimizer_steps"] == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["model.widths=[6,6]"], "is not a sparse Tensor Core shape"),
        (["sparsity.skip=[layers.*]"], "in sparsity.skip"),
        (["sparsity=unstructured", "sparsity.density=1e-9"], "would stay at density"),
    ],
    ids=["shape", "skip", "density"],
)
def test_nothing_to_prune(train, settings, reason):
    ran = train(*MLP, "sparsity=2of4", *settings)
    assert_refused(ran, " finds nothing to prune in this model (")
    assert reason in ran.err


def test_limit_that_leaves_no_batch(train):
    assert_refused(
        train(*MLP, "trainer.limit_train_batches=0.001"),
        "trainer.limit_train_batches=0.001 leaves no batch of an epoch.",
    )


NO_STEP = {
    "optimizer_states": [],
    "lr_schedulers": [],
    "global_step": 0,
    "pytorch-lightning_version": "2.6.6",
}


class Trap:
    def __reduce__(self):
        return (os.system, ("touch trapped",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a checkpoint", "cannot be read, it is damaged or no checkpoint"),
        ({"weights": torch.zeros(1)}, "is not a training checkpoint of mpx"),
        (
            {"state_dict": {"other": torch.zeros(1)}, "loops": {}} | NO_STEP,
            "is a checkpoint of another model: ",
        ),
        ({"state_dict": Trap()}, "holds something other than tensors and plain values; it was not loaded"),
    ],
    ids=["text", "foreign", "another model", "code"],
)
def test_unusable_checkpoint(train, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path, pickle_module=pickle)
    assert_refused(train(*MLP, f"ckpt_path={path}"), message)
    assert not (tmp_path / "trapped").exists()


@pytest.fixture(scope="module")
def made():
    """What `trained` has made."""
    return {}


@pytest.fixture
def trained(train, tmp_path, made):
    """trained(*overrides) -> the checkpoint of a run of two steps, away from its folder."""

    def run(*overrides):
        if overrides not in made:
            ran = train(*MLP, *overrides)
            assert ran.code == 0, ran.err
            made[overrides] = (ran.folder / "checkpoints" / "last.ckpt").read_bytes()
            shutil.rmtree(ran.outputs)
        (tmp_path / "first.ckpt").write_bytes(made[overrides])
        return tmp_path / "first.ckpt"

    return run


LONGER = "trainer.max_epochs=4"


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (
            ["optimizer=sgd"],
            [LONGER],
            "was trained with optimizer=sgd, this command has optimizer=adamw. Use optimizer=sgd.",
        ),
        (
            ["sparsity=unstructured"],
            [LONGER, "sparsity=2of4"],
            "was pruned to unstructured with sparsity.recipe=asp in 2 layers, this command has 2of4 with asp in 2",
        ),
        (
            ["sparsity=2of4", "sparsity.recipe=sr_ste"],
            [LONGER, "sparsity=2of4"],
            "was pruned to 2of4 with sparsity.recipe=sr_ste in 2 layers, this command has 2of4 with asp in 2.",
        ),
        (
            ["sparsity=2of4"],
            [LONGER, "sparsity=2of4", "sparsity.skip=[layers.0]"],
            "with asp in 1. Use the settings of sparsity that it was trained with.",
        ),
    ],
    ids=["optimizer", "pattern", "recipe", "layers"],
)
def test_checkpoint_of_other_settings(train, trained, first, then, message):
    assert_refused(train(*MLP, f"ckpt_path={trained(*first)}", *then), message)


def test_output_folder_that_is_a_file(train, tmp_path):
    (tmp_path / "outputs").write_text("in the way")
    ran = train(*MLP)
    assert ran.code == 2
    assert "error: output_dir: cannot write" in ran.err
    assert (tmp_path / "outputs").read_text() == "in the way"


CFG = OmegaConf.create({"data": {"batch_size": 64}})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "out of memory with data.batch_size=64: lower it",
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
            "out of memory",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk that holds runs is full"),
        (
            PermissionError(errno.EACCES, "Permission denied", "runs/x"),
            "runs/x cannot be used (Permission denied)",
        ),
        (
            IsADirectoryError(errno.EISDIR, "Is a directory", "runs/x"),
            "runs/x cannot be used (Is a directory). Choose another folder",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "data/x"),
            "data/x cannot be used (Permission denied). Allow it, or name",
        ),
        (UserError("as it is"), "as it is"),
    ],
)
def test_explanations(error, words):
    assert words in explain(error, CFG, Path("runs"))


def test_a_bug_keeps_its_traceback():
    assert explain(ZeroDivisionError("division by zero"), CFG, Path("runs")) is None


ROOM = 300_000  # bytes: for a record, and not for a checkpoint of 2.5 MB


def test_a_disk_that_fills_up_while_a_run_trains(train, monkeypatch):
    """The checkpoint before it stays whole, and the run continues from it, bit for bit."""
    words = [*MLP, "model.widths=[400,400]", "trainer.max_epochs=3", "trainer.progress=off"]
    with monkeypatch.context() as patch, ExitStack() as disk:

        def fill(self, trainer, *_):
            if trainer.global_step == 5:
                disk.enter_context(full_disk(ROOM))

        patch.setattr(Throughput, "on_train_batch_start", fill)
        ran = train(*words)
    assert_failed(ran, "is full. Free some space")
    again = train(*words, "if_exists=resume")
    assert again.code == 0, again.err
    # that of step 4 may be on its way to the disk
    assert again.record["environment"]["resumed_from_steps"] in ([2], [4])
    uncut = train(*words, "study=uncut")
    weights = [
        torch.load(path, weights_only=True)["state_dict"] for path in sorted(uncut.outputs.rglob("last.ckpt"))
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
