"""Every YAML file in conf/ composes and trains a few steps, through the front door, and leaves a complete
record.
"""

import math

import made_data
import pytest
import torch
from few_steps import FEW_STEPS
from pairs import pairs

from mpx.precision.modes import MODES
from mpx.train import CONF

TINY_BERT = ["model.num_layers=1", "model.hidden_size=32", "model.num_heads=2"]
MODELS = {
    "bert_base": [*TINY_BERT, "model.patch=4"],
    "bert_small": [*TINY_BERT, "model.patch=4"],
    "resnet50": ["data.batch_size=8", "optimizer.lr=0.001"],
    "resnet18": ["data.batch_size=8"],
    "timm": ["model.name=resnet10t", "data.image_size=32", "data.batch_size=8"],
    "torchvision": ["model.name=squeezenet1_1", "data.image_size=32", "data.batch_size=8"],
    "hf": [
        "model.name=vit",
        "+model.kwargs={image_size:8,patch_size:4,num_hidden_layers:1,hidden_size:32,num_attention_heads:2}",
    ],
    "custom": ["model._target_=made_net.Net"],
}
DATA = {
    "image_folder": [
        "model=resnet20",
        "data.path=ROOT/images",
        "data.batch_size=8",
        "data.image_size=16",
        "data.resize=20",
        "data.workers=2",
    ],
    "sst2": ["model=lstm"],
    "text_csv": ["model=mlp", "data.path=ROOT/reviews.csv"],
    "huggingface": ["model=mlp", "data.path=ROOT/reviews.jsonl"],
    "custom": ["model=mlp", "data._target_=own_data.make_data"],
    "wikitext2": ["model=lstm", "model.hidden_size=16", "data.batch_size=8", "data.eval_batch_size=8"],
    "text_file": ["model=lstm", "data.path=ROOT/text.txt", "data.seq_len=32", "data.batch_size=8"],
    "synthetic": ["data.shape=[3,16,16]", "data.samples=256", "data.classes=5"],
}
OWN_NAMES = {
    "image_folder": "images", "text_csv": "reviews", "text_file": "text", "huggingface": "reviews",
    "custom": "make_data",
}  # fmt: skip
RECORD = {
    "schema_version", "status", "setting", "config", "metrics", "speed", "memory", "precision", "sparsity",
    "environment",
    "data", "metric",
}  # fmt: skip


def stems(group):
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """The data sets, and in `cache` the tokenizers that the first test of a set trains."""
    return made_data.everything(tmp_path_factory.mktemp("data"))


@pytest.fixture
def few(train, root, monkeypatch):
    monkeypatch.setenv("MPX_DATA", str(root))
    monkeypatch.setenv("MPX_CACHE", str(root / "cache"))

    def run(*overrides):
        ran = train(*FEW_STEPS, *(override.replace("ROOT", str(root)) for override in overrides))
        assert ran.code == 0, ran.err
        record = ran.record
        assert set(record) >= RECORD
        assert record["status"] == "completed"
        assert record["speed"]["train_samples_per_s"] > 0
        assert record["metrics"].keys() >= {"test/loss", "val/loss", "test/accuracy"}
        return ran

    return run


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "resnet50" else ()) for name in stems("model")],
)
def test_model(few, name, tmp_path, monkeypatch):
    (tmp_path / "made_net.py").write_text(
        "from torch import nn\n"
        "def Net(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * "
        "input_shape[2], num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    record = few(f"model={name}", *MODELS.get(name, [])).record
    assert record["setting"]["model"] == name
    assert record["speed"]["model_tflops_per_s"] > 0
    assert record["precision"]["observed"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("sst2", "wikitext2") else ())
        for name in stems("data")
        if name != "cifar10"
    ],
)
def test_data(few, name):
    if name == "huggingface":
        pytest.importorskip("datasets", reason="the extra mpx[data] is not installed")
    record = few(f"data={name}", *DATA.get(name, ["model=mlp"])).record
    assert record["setting"]["data"] == OWN_NAMES.get(name, name)
    assert ("test/perplexity" in record["metrics"]) == (record["config"]["data"]["kind"] == "lm")


TRAINED = ("resnet20", "lstm", "bert_small")


EVERY = sorted(  # a run with 2of4 begins dense, and what is observed is its first step
    {(p, "2of4") for p in stems("precision")} | {(p, s) for p in ("fp32", "amp") for s in stems("sparsity")}
)


@pytest.mark.parametrize(("precision", "sparsity"), EVERY)
def test_precision_and_sparsity(few, precision, sparsity):
    """The models take turns."""
    turn = stems("precision").index(precision) + stems("sparsity").index(sparsity)
    model = TRAINED[turn % len(TRAINED)]
    record = few(
        f"model={model}", f"precision={precision}", f"sparsity={sparsity}", *MODELS.get(model, [])
    ).record
    mode = MODES[record["precision"]["mode"]]
    assert record["precision"]["observed"]
    for kind, calls in record["precision"]["observed"].items():
        assert set(calls) == {mode.formats[kind]}, (
            f"{kind} ran in {calls}, {precision} promises {mode.formats[kind]}"
        )
    assert record["setting"]["precision"] == mode.name  # aliases are made canonical
    if sparsity != "dense":
        assert record["sparsity"]["verified"] is True
        assert record["sparsity"]["density"] == pytest.approx(0.5, abs=0.01)
        assert all(layer["pruned"] or layer["reason"] for layer in record["sparsity"]["layers"])


STATE = {"adamw": "exp_avg", "sgd": "momentum_buffer"}
# of 4 steps, of the peak
LAST_RATE = {"constant": 1.0, "cosine": (1 + math.cos(0.75 * math.pi)) / 2, "linear": 0.25, "step": 0.01}


def test_every_optimizer_and_schedule_is_known_here():
    assert (sorted(STATE), sorted(LAST_RATE)) == (stems("optimizer"), stems("schedule"))


@pytest.mark.parametrize(("schedule", "optimizer"), pairs(LAST_RATE, list(STATE)))
def test_optimizer_and_schedule(few, optimizer, schedule):
    steps = ["trainer.limit_train_batches=4", "schedule.warmup=0"]
    ran = few("model=mlp", f"optimizer={optimizer}", f"schedule={schedule}", *steps)
    peak = ran.record["config"]["optimizer"]["lr"]
    (saved,) = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"]
    assert all(STATE[optimizer] in state for state in saved["state"].values())
    assert [group["lr"] for group in saved["param_groups"]] == [
        pytest.approx(peak * LAST_RATE[schedule])
    ] * len(saved["param_groups"])


@pytest.mark.parametrize("trainer", stems("trainer"))
def test_trainer(few, trainer):
    """Two batches are one optimizer step, whose gradient is cut to nothing: SGD moves no weight but by its
    decay, which is off.
    """
    frozen = ["optimizer=sgd", "optimizer.weight_decay=0", "trainer.gradient_clip_val=1e-20"]
    ran = few("model=mlp", f"trainer={trainer}", "trainer.accumulate_grad_batches=2", *frozen)
    assert ran.record["precision"]["optimizer_steps"] == 1
    (saved,) = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"]
    assert all(0 < state["momentum_buffer"].norm() <= 1e-20 for state in saved["state"].values())


COSTLY = ("mnist", "wikitext2")  # their data; test_data has them on a smaller model


# Those of digits are trained by test_model. CIFAR-10's files are checked by checksums, so that no made ones
# can stand for them.
TASKS = [task for task in stems("task") if not task.endswith(("_digits", "cifar10"))]


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=pytest.mark.slow if task.endswith(COSTLY) else ()) for task in TASKS]
)
def test_task(few, task):
    """With batches that a CPU can bear and a rate that so small ones can."""
    bearable = [
        "data.batch_size=2",
        "data.eval_batch_size=2",
        "optimizer.lr=0.001",
        *(TINY_BERT if "bert" in task else []),
    ]
    record = few(f"task={task}", *bearable).record
    assert task == f"{record['setting']['model']}_{record['setting']['data']}"
