"""What is trained: the four models at the sizes of the targets, and tiny ones for a trial. And whole runs of
it by mpx.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

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


class Mpx:
    """Each `samples_per_s` is a whole run. more: further overrides. steps: measured, where not those of the
    setup.
    """

    def __init__(self, setup: Setup, way: str, more: Sequence[str] = (), steps: int | None = None):
        self.setup, self.way, self.more, self.note = setup, way, list(more), ""
        self.steps = steps or setup.steps

    def samples_per_s(self) -> float:
        few = (
            f"trainer.max_steps={self.steps + WARMUP} trainer.warmup_steps={WARMUP} trainer.max_epochs=1000 "
            "trainer.check_val_every_n_epoch=1000 trainer.limit_val_batches=1 trainer.limit_test_batches=1"
        )
        way = WAYS[self.way]
        if self.way == "auto" and device().type == "cuda":
            way = WAYS["graph" if self.setup.model == "lstm" else "searched"]
        record = train([*choice(self.setup), *way, *few.split(), *self.more])
        self.note = json.dumps(record["speed"].get("chosen"))
        if record["speed"].get("train_samples_per_s") is None:
            raise RuntimeError(self.note)
        self.exclusive = record["speed"]["exclusive"]
        return record["speed"]["train_samples_per_s"]

    def close(self) -> None:
        """Nothing is kept between runs."""


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


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """The record of one run."""
    import mpx

    folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    with folder as path, contextlib.redirect_stdout(sys.stderr):
        return mpx.run([*overrides, "trainer.progress=off", f"output_dir={path}"])
