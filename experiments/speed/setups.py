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
TINY = {
    "resnet50": ([3, 32, 32], 4, 4, 8, 4), "resnet18": ([3, 8, 8], 4, 4, 8, 4), "bert_small": ([8], 2, 4, 8,
    4), "lstm": ([8], 2, 4, 8, 4),
}  # fmt: skip
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
    "graph": ["trainer.cuda_graphs=true", "trainer.compile=off"],
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
        self.setup, self.way, self.more, self.steps, self.note = (
            setup,
            way,
            list(more),
            steps or setup.steps,
            "",
        )

    def samples_per_s(self) -> float:
        few = [
            f"trainer.max_steps={self.steps + WARMUP}",
            f"trainer.warmup_steps={WARMUP}",
            "trainer.max_epochs=1000",
        ]
        few += [
            "trainer.check_val_every_n_epoch=1000",
            "trainer.limit_val_batches=1",
            "trainer.limit_test_batches=1",
        ]
        way = WAYS[self.way]
        if self.way == "auto" and device().type == "cuda":
            way = WAYS["graph" if self.setup.model == "lstm" else "both"]
        record = train([*choice(self.setup), *way, *few, *self.more])
        self.note = json.dumps(record["speed"].get("chosen"))
        if record["speed"].get("train_samples_per_s") is None:
            raise RuntimeError(self.note)
        self.exclusive = record["speed"]["exclusive"]
        return record["speed"]["train_samples_per_s"]

    def close(self) -> None:
        """Nothing is kept between runs."""


def choice(setup: Setup) -> list[str]:
    shape = f"data.shape={setup.shape}".replace(" ", "")
    found = [
        f"model={setup.model}",
        f"precision={setup.precision}",
        "data=synthetic",
        shape,
        f"data.classes={setup.classes}",
    ]
    found += [
        f"data.batch_size={setup.batch}",
        f"data.samples={setup.batch * setup.batches}",
        "trainer.log_every_n_steps=50",
    ]
    if setup.text:
        found += [
            "data.kind=text",
            f"model.hidden_size={setup.hidden}",
            f"data.vocab_size={setup.vocabulary}",
            "optimizer.lr=1e-4",
        ]
        own = (
            ["model.num_layers=2", "optimizer=adamw"]
            if setup.model == "lstm"
            else [f"model.num_layers={setup.layers}"]
        )
        found += own + (["model.num_heads=1"] if setup.tiny and setup.model == "bert_small" else [])
    # the whole last layer, as transformers' model computes it
    return found + (["model.pool=mean"] if setup.model == "bert_small" else [])


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """The record of one run."""
    import mpx

    folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    with folder as path, contextlib.redirect_stdout(sys.stderr):
        return mpx.run([*overrides, "trainer.progress=off", f"output_dir={path}"])
