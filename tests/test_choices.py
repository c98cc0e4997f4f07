"""Every YAML file in conf/ composes and trains a few steps, through the front door, and leaves a complete record."""

import made_data
import pytest
from few_steps import FEW_STEPS

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
    "hf": ["model.name=vit", "+model.kwargs={image_size:8,patch_size:4,num_hidden_layers:1,hidden_size:32,num_attention_heads:2}"],
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
    "wikitext2": ["model=lstm", "model.hidden_size=16"],
    "text_file": ["model=lstm", "data.path=ROOT/text.txt", "data.seq_len=32", "data.batch_size=8"],
    "synthetic": ["data.shape=[3,16,16]", "data.samples=256", "data.classes=5"],
}
RECORD = {
    "schema_version", "status", "setting", "config", "metrics", "speed", "memory", "precision", "sparsity", "environment",
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
        return record

    return run


@pytest.mark.parametrize("name", stems("model"))
def test_model(few, name, tmp_path, monkeypatch):
    (tmp_path / "made_net.py").write_text(
        "from torch import nn\n"
        "def Net(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    record = few(f"model={name}", *MODELS.get(name, []))
    assert record["setting"]["model"] == name
    assert record["speed"]["model_tflops_per_s"] > 0
    assert record["precision"]["observed"]


@pytest.mark.parametrize("name", stems("data"))
def test_data(few, name):
    record = few(f"data={name}", *DATA.get(name, ["model=mlp"]))
    assert record["setting"]["data"] == name
    assert ("test/perplexity" in record["metrics"]) == (record["config"]["data"]["kind"] == "lm")


PAIRS = [(p, s) for p in stems("precision") for s in ("dense", "2of4")] + [(p, s) for p in ("fp32", "amp") for s in stems("sparsity")]


@pytest.mark.parametrize(("precision", "sparsity"), sorted(set(PAIRS)))
@pytest.mark.parametrize("model", ["resnet20", "lstm", "bert_small"])
def test_precision_and_sparsity(few, model, precision, sparsity):
    record = few(f"model={model}", f"precision={precision}", f"sparsity={sparsity}", *MODELS.get(model, []))
    mode = MODES[record["precision"]["mode"]]
    assert record["precision"]["observed"]
    for kind, calls in record["precision"]["observed"].items():
        assert set(calls) <= set(mode.promises(kind)), f"{kind} ran in {calls}, {precision} promises {mode.promises(kind)}"
    assert record["setting"]["precision"] == mode.name  # aliases are made canonical
    if sparsity != "dense":
        assert record["sparsity"]["verified"] is True
        assert record["sparsity"]["density"] == pytest.approx(0.5, abs=0.01)
        assert all(layer["pruned"] or layer["reason"] for layer in record["sparsity"]["layers"])


@pytest.mark.parametrize("optimizer", stems("optimizer"))
@pytest.mark.parametrize("schedule", stems("schedule"))
def test_optimizer_and_schedule(few, optimizer, schedule):
    record = few("model=mlp", f"optimizer={optimizer}", f"schedule={schedule}")
    assert record["config"]["optimizer"]["name"] == optimizer


@pytest.mark.parametrize("trainer", stems("trainer"))
def test_trainer(few, trainer):
    few("model=mlp", f"trainer={trainer}", "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=1.0")


@pytest.mark.parametrize("task", stems("task"))
def test_task(few, task):
    """With the tuned numbers, but with batches that a CPU can bear and a rate that so small ones can."""
    record = few(
        f"task={task}", "data.batch_size=2", "data.eval_batch_size=2", "optimizer.lr=0.001", *(TINY_BERT if "bert" in task else [])
    )
    assert task == f"{record['setting']['model']}_{record['setting']['data']}"
