"""What is trained: the four models at the sizes of the targets, and tiny ones for a trial. And whole runs of
it by mpx.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
from collecting import ONLY_STEPS, train

IMAGES = {"resnet50": ([3, 224, 224], 1000, 256, 8, 40), "resnet18": ([3, 32, 32], 10, 512, 48, 200)}
TEXTS = {"bert_small": ([128], 2, 256, 96, 120), "lstm": ([128], 2, 256, 96, 120)}
FULL = IMAGES | TEXTS  # shape, classes, batch, batches in an epoch, measured steps
SMALL_IMAGE, SMALL_TEXT = ([3, 8, 8], 4, 4, 8, 4), ([8], 2, 4, 8, 4)
TINY = (
    dict.fromkeys(IMAGES, SMALL_IMAGE)
    | dict.fromkeys(TEXTS, SMALL_TEXT)
    | {"resnet50": ([3, 32, 32], 4, 4, 8, 4)}
)
MODELS = tuple(FULL)
TITLES = {"resnet50": "ResNet-50", "resnet18": "ResNet-18", "bert_small": "BERT-small", "lstm": "LSTM"}


@dataclass(frozen=True)
class Setup:
    model: str
    precision: str  # a mode of mpx
    shape: list[int]  # of one sample: [channels, height, width] or [tokens]
    classes: int
    batch: int
    batches: int  # in an epoch
    steps: int  # measured
    tiny: bool = False
    vocabulary: int = 30522
    hidden: int = 512
    layers: int = 4  # of BERT

    @property
    def text(self) -> bool:
        return len(self.shape) == 1


def setup(model: str, precision: str, *, tiny: bool) -> Setup:
    small = {"tiny": True, "vocabulary": 50, "hidden": 64, "layers": 1} if tiny else {}
    shape, classes, batch, batches, steps = (TINY if tiny else FULL)[model]
    if precision == "fp32" and not tiny:
        steps //= 2
    return Setup(model, precision, shape, classes, batch, batches, steps, **small)


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


WAYS = {  # auto names what speed=auto takes for a long run: these are short
    "auto": [],
    "plain": ["speed=plain"],
    "graph": ["trainer.cuda_graphs=true", "trainer.compile=off", "trainer.benchmark=true"],
    "compile": ["trainer.cuda_graphs=false", "trainer.compile=default"],
    "both": ["trainer.cuda_graphs=true", "trainer.compile=default"],
    "searched": ["trainer.cuda_graphs=true", "trainer.compile=default", "trainer.benchmark=true"],
    "autotune": ["trainer.cuda_graphs=true", "trainer.compile=max-autotune", "trainer.benchmark=true"],
    "overhead": ["trainer.compile=reduce-overhead"],
}
WARMUP = 15  # steps
# of a whole run; batches of four images would diverge by rounding at a higher rate, on some CPUs
TRIAL = (
    "data=synthetic data.shape=[1,28,28] data.classes=10 data.samples=64 data.eval_batch_size=4 "
    "trainer.max_epochs=2 optimizer.lr=0.001 trainer.limit_train_batches=4 "
    "trainer.warmup_steps=2 trainer.limit_val_batches=2 trainer.limit_test_batches=2"
)


class Mpx:
    """Each `samples_per_s` is a whole run. more: further overrides."""

    def __init__(self, setup: Setup, way: str, more: Sequence[str] = ()):
        self.setup, self.way, self.more, self.note = setup, way, list(more), ""

    def samples_per_s(self) -> float:
        steps, way = self.setup.steps, WAYS[self.way]
        if self.way == "auto" and device().type == "cuda":
            way = WAYS["graph" if self.setup.model == "lstm" else "searched"]
        few = [f"trainer.max_steps={steps + WARMUP}", f"trainer.warmup_steps={WARMUP}", *ONLY_STEPS]
        record = train([*choice(self.setup), *way, *few, *self.more])
        self.note = json.dumps(record["speed"].get("chosen"))
        if record["speed"].get("train_samples_per_s") is None:
            raise RuntimeError(self.note)
        return record["speed"]["train_samples_per_s"]


class Whole:
    """Ten epochs of Fashion-MNIST with evaluation, logging and checkpoints: samples over the time to train. A
    trial trains on a few synthetic images.

    The note has the throughput, which leaves out everything but steps, and what the time went into.
    """

    def __init__(self, setup: Setup, data_root: str | None):
        self.batch, self.note = setup.batch, ""
        data = f"data=fashion_mnist data.root={data_root} data.download=false trainer.max_epochs=10 optimizer.lr=0.1"
        words = f"model={setup.model} precision={setup.precision} data.batch_size={setup.batch} "
        self.overrides = (words + (TRIAL if setup.tiny else data)).split()

    def samples_per_s(self) -> float:
        record = train(self.overrides)
        if record["status"] != "completed":
            raise RuntimeError(f"the run is {record['status']}")
        speed, precision = record["speed"], record["precision"]
        self.steps = precision["optimizer_steps"] + precision["skipped_steps"]
        parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in speed["time_to_train_parts_s"].items())
        rate, seconds = speed["train_samples_per_s"], speed["time_to_train_s"]
        self.note = f"its steps {rate:.1f} samples/s; {seconds:.3f} s: {parts}"
        return self.steps * self.batch / seconds


def choice(setup: Setup) -> list[str]:
    shape = str(setup.shape).replace(" ", "")
    words = (
        f"model={setup.model} precision={setup.precision} data=synthetic data.shape={shape} "
        f"data.classes={setup.classes} data.batch_size={setup.batch} data.samples={setup.batch * setup.batches} "
        "trainer.log_every_n_steps=50"
    )
    if setup.text:
        words += f" data.kind=text data.vocab_size={setup.vocabulary} model.hidden_size={setup.hidden} optimizer.lr=1e-4"
    if setup.model == "lstm":
        words += " model.num_layers=2 optimizer=adamw"
    if setup.model == "bert_small":
        # the whole last layer, as transformers' model computes it
        words += f" model.num_layers={setup.layers} model.pool=mean" + " model.num_heads=1" * setup.tiny
    return words.split()
