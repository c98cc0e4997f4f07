"""A checkpoint that is damaged, or whose parts do not fit the run, is refused whole before training, or an older one is taken."""

import copy
import random
import shutil

import pytest
import torch
from few_steps import FEW_STEPS
from made_data import text_file

from mpx.runs.damage import damage
from mpx.runs.history import PROGRESS

SETTING = ["model=mlp", "model.widths=[16,16]", "precision=amp", "sparsity=2of4", "sparsity.shape_rule=any", "sparsity.start_step=1"]
SETTING += ["trainer.ema_decay=0.9", *FEW_STEPS, "trainer.progress=off"]
LOOP = "loops/fit_loop"
SCALE = "ModePrecision/loss_scale"
MOMENTS = "optimizer_states/0/state"


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture
def good(train, made):
    """A checkpoint of two steps, whose run is gone."""
    if not made:
        ran = train(*SETTING)
        assert ran.code == 0, ran.err
        made["content"] = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)
        shutil.rmtree(ran.outputs)
    return copy.deepcopy(made["content"])


def spoil(content, where, value):
    """`content` with another value at `where`; without the key if the value is `...`."""
    *parents, last = (int(key) if key.isdecimal() else key for key in where.split("/"))
    for key in parents:
        content = content[key]
    if value is ...:
        del content[last]
    else:
        content[last] = value(content[last]) if callable(value) else value


SPOILED = [  # where, the value there, the reason that is given
    ("loops/fit_loop", ..., "there is no 'fit_loop'"),
    (f"{SCALE}/scale", float("nan"), "its loss scale is nan"),
    (MOMENTS, {}, "its optimizer has no state after 2 steps"),
    ("state_dict/layers.0.weight", lambda weight: weight * torch.nan, "the weights of layers.0.weight are infinite or NaN"),
    ("callbacks/Pruning/masks/layers.0.weight", torch.logical_not, "its weights of layers.0.weight break the pattern or the mask"),
]
MORE = [
    (f"{LOOP}/epoch_progress", ..., "there is no 'epoch_progress'"),
    (f"{LOOP}/epoch_progress/current/completed", "x", "its completed is 'x', not a count"),
    (f"{LOOP}/epoch_progress/current", dict.fromkeys(PROGRESS, 7), "You restored a checkpoint with current_epoch=7, but you have set"),
    (f"{MOMENTS}/0/exp_avg_sq", None, "its optimizer's exp_avg_sq is a NoneType"),
    ("callbacks/Numerics", None, "its Numerics is a NoneType"),
    ("callbacks/Pruning/sensitivity", "x", "its Pruning has a str as sensitivity"),
    ("callbacks/Pruning/kept/layers.0.weight", "x", "could not convert string to float"),
    (f"{LOOP}/epoch_loop.batch_progress/total/ready", -1, "its ready is -1, not a count"),
    (f"{LOOP}/state_dict", {}, "it does not say how far the epoch's data were read"),
    (f"{SCALE}/scale", float("inf"), "its loss scale is inf"),
    (f"{SCALE}/range/1", float("nan"), "its loss scale is nan"),
    ("callbacks/RandomState/python/2", "x", "its state of Python's random numbers ends with a str"),
    (f"{SCALE}/scale", 0.0, "its loss scale is 0.0"),
    (f"{SCALE}/scale", "x", "must be real number"),
    ("ModePrecision/steps", ..., "there is no 'steps'"),
    ("optimizer_states", [], "cannot be continued"),
    (f"{MOMENTS}/0/exp_avg", ..., "its optimizer has no exp_avg for a weight of shape (16, 64)"),
    (f"{MOMENTS}/0/exp_avg", torch.zeros(3), "its optimizer's exp_avg does not fit a weight of shape (16, 64)"),
    (f"{MOMENTS}/0/exp_avg_sq", torch.Tensor.log, "its optimizer's exp_avg_sq is infinite or NaN"),
    ("callbacks/Pruning/masks/layers.0.weight", torch.ones(3, dtype=torch.bool), "its mask of layers.0.weight does not fit this model"),
    ("callbacks/Pruning/kept/layers.0.weight", ..., "it lacks what was pruned of layers.0.weight"),
    ("callbacks/Ema/averages/layers.0.weight", ..., "there is no 'layers.0.weight'"),
    ("callbacks/Ema/averages/layers.0.bias", torch.ones(3), "its average of layers.0.bias does not fit this model"),
    (f"{MOMENTS}/0/exp_avg_sq", lambda value: value + 1, "its optimizer's state of layers.0.weight (exp_avg_sq) is not zero where"),
    (f"{MOMENTS}/1/exp_avg_sq", torch.Tensor.neg, "its optimizer's exp_avg_sq is negative"),
    (f"{MOMENTS}/0/step", torch.Tensor.neg, "its optimizer's step is negative"),
    (f"{LOOP}/epoch_progress/current/started", 4, "its current counts {'ready': 1, 'completed': 0, 'started': 4"),
    ("callbacks/Pruning", {}, "its Pruning is empty"),
    ("callbacks/Ema/averages/layers.0.bias", torch.Tensor.log, "its average of layers.0.bias is infinite or NaN"),
    ("callbacks/Numerics/totals", torch.Tensor.neg, "its counts of gradients are negative, infinite or NaN"),
    ("callbacks/Throughput/time_to_train_s", float("nan"), "its time_to_train_s is nan"),
    ("ModePrecision/steps", float("nan"), "its steps is nan, not a count"),
    ("mpx/resumed_from_steps", ["x"], "its resumed_from_steps is 'x', not a count"),
    ("results", {"val/loss": "x"}, "could not convert string to float"),
    ("callbacks/RandomState/torch", torch.zeros(3, dtype=torch.uint8), "cannot be continued"),
    ("callbacks", 5, "cannot be continued"),
]


@pytest.mark.parametrize(("where", "value", "reason"), [*SPOILED, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)])
def test_a_part_that_does_not_fit(train, good, tmp_path, where, value, reason):
    spoil(good, where, value)
    torch.save(good, tmp_path / "spoiled.ckpt")
    ran = train(*SETTING, "trainer.max_epochs=2", f"ckpt_path={tmp_path}/spoiled.ckpt")
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert ran.err.startswith(f"error: ckpt_path={tmp_path}/spoiled.ckpt cannot be continued: ")
    assert reason in ran.err
    assert not ran.outputs.exists()


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(tmp_path):
    file = tmp_path / "whole.ckpt"
    file.symlink_to(file.name)  # in a loop, which not even root can read
    assert "Too many levels of symbolic links" in damage(file)


def test_one_flipped_byte_anywhere(tmp_path):
    """It is found by a checksum, or lies between the parts, where nothing reads it."""
    content = {"weight": torch.arange(200.0), "name": "x", "step": 3}
    whole, file = tmp_path / "whole.ckpt", tmp_path / "flipped.ckpt"
    torch.save(content, whole)
    assert damage(whole) is None
    found, data = 0, whole.read_bytes()
    for place in random.Random(0).sample(range(len(data)), 400):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        if damage(file) is not None:
            found += 1
            continue
        try:
            loaded = torch.load(file, weights_only=True)
        except (RuntimeError, ValueError):  # a refusal too
            found += 1
            continue
        assert torch.equal(loaded.pop("weight"), content["weight"])
        assert loaded == {"name": "x", "step": 3}
    assert found > 200


LONG = ["model=mlp", "model.widths=[16,16]", *FEW_STEPS, "trainer.max_epochs=4", "trainer.progress=off"]


@pytest.fixture
def cut(interrupted):
    """A run of four epochs that was interrupted in the last one; its folder."""
    return interrupted(6, *LONG).folder


def flip(file):
    """As a disk does: in place, so that a file of two names is damaged under both."""
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 1]))


def test_the_checkpoint_before_a_damaged_one_is_taken(train, cut):
    checkpoints = cut / "checkpoints"
    flip(checkpoints / "last.ckpt")
    ran = train(*LONG, "if_exists=resume")
    assert ran.code == 0, ran.err
    assert f"{checkpoints}/last.ckpt is damaged (" in ran.err
    assert ran.record["environment"]["resumed_from_steps"] == [4]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best.ckpt", "last.ckpt"]
    uncut = train(*LONG, "study=uncut")
    weights = [torch.load(path, weights_only=True)["state_dict"] for path in sorted(uncut.outputs.rglob("last.ckpt"))]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_without_a_whole_checkpoint_nothing_is_touched(train, cut):
    files = list((cut / "checkpoints").iterdir())
    for file in files:
        file.write_bytes(file.read_bytes()[:1000])
    ran = train(*LONG, "if_exists=resume")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith(f"error: {cut} has no whole checkpoint to continue from. Use if_exists=overwrite to start")
    assert all(file.stat().st_size == 1000 for file in files)
    assert ran.record["status"] == "interrupted"
    assert train(*LONG, "if_exists=overwrite").code == 0


def test_a_part_that_skips_all_its_steps_is_not_completed(train, good, tmp_path):
    """Its scale is fixed where all gradients overflow."""
    torch.save(good, tmp_path / "good.ckpt")
    fixed = ["precision.loss_scale.dynamic=false", "precision.loss_scale.initial=1e38"]
    ran = train(*SETTING, "trainer.max_epochs=2", *fixed, f"ckpt_path={tmp_path}/good.ckpt")
    assert (ran.code, ran.record["status"]) == (3, "diverged")
    assert "all 2 optimizer steps were skipped because gradients were infinite or NaN" in ran.err


def test_data_that_changed_since_the_run_was_cut_off(train, interrupted, tmp_path):
    file = tmp_path / "text.txt"
    text_file(file)
    words = ["model=lstm", "data=text_file", f"data.path={file}", "data.seq_len=32", "data.batch_size=8", *FEW_STEPS]
    words += ["model.hidden_size=16", "model.embedding_size=16", "trainer.max_epochs=3", "trainer.progress=off"]
    interrupted(5, *words)
    before = file.read_text()
    file.write_text(before[:100] + before[100:].replace("that is", "this is", 1))
    ran = train(*words, "if_exists=resume")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    last = ran.folder / "checkpoints" / "last.ckpt"
    assert ran.err.startswith(f"error: the train data are no longer those that {last} was trained on. Put the old files back, start")
    assert ran.record["status"] == "interrupted"
    assert f"'ckpt_path=\"{last}\"'" in ran.err
    _with_a_best_that_none_surpasses(last)
    assert train(*words, f"ckpt_path={last}").code == 0
    assert (ran.record["status"], ran.record["environment"]["resumed_from_steps"]) == ("completed", [4])
    assert torch.load(last.with_name("best.ckpt"), weights_only=True)["global_step"] > 4  # the best is that of the new data


def _with_a_best_that_none_surpasses(path):
    checkpoint = torch.load(path, weights_only=True)
    (best,) = (state for name, state in checkpoint["callbacks"].items() if name.startswith("Best"))
    low = torch.tensor(-1.0)
    best |= {"best_model_score": low, "kth_value": low, "best_k_models": dict.fromkeys(best["best_k_models"], low)}
    torch.save(checkpoint, path)
