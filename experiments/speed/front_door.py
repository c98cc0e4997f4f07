"""Whole runs of mpx in this process."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from setups import Setup

WAYS = {  # auto takes for these short runs what it takes for long ones
    "auto": ["speed=auto"],
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
    """Each `samples_per_s` is a whole run. more: further overrides. steps: measured, where not those of the setup."""

    def __init__(self, setup: Setup, way: str, more: Sequence[str] = (), steps: int | None = None):
        self.setup, self.way, self.more, self.steps, self.note = setup, way, list(more), steps or setup.steps, ""

    def samples_per_s(self) -> float:
        few = [f"trainer.max_steps={self.steps + WARMUP}", f"trainer.warmup_steps={WARMUP}", "trainer.max_epochs=1000"]
        few += ["trainer.check_val_every_n_epoch=1000", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
        with as_for_a_long_run():
            record = train([*choice(self.setup), *WAYS[self.way], *few, *self.more])
        self.note = json.dumps(record["speed"].get("chosen"))
        if record["speed"].get("train_samples_per_s") is None:
            raise RuntimeError(self.note)
        self.exclusive = record["speed"]["exclusive"]
        return record["speed"]["train_samples_per_s"]

    def close(self) -> None:
        """Nothing is kept between runs."""


def choice(setup: Setup) -> list[str]:
    shape = f"data.shape={setup.shape}".replace(" ", "")
    found = [f"model={setup.model}", f"precision={setup.precision}", "data=synthetic", shape, f"data.classes={setup.classes}"]
    found += [f"data.batch_size={setup.batch}", f"data.samples={setup.batch * setup.batches}", "trainer.log_every_n_steps=50"]
    if setup.text:
        found += ["data.kind=text", f"model.hidden_size={setup.hidden}", f"data.vocab_size={setup.vocabulary}", "optimizer.lr=1e-4"]
        own = ["model.num_layers=2", "optimizer=adamw"] if setup.model == "lstm" else [f"model.num_layers={setup.layers}"]
        found += own + (["model.num_heads=1"] if setup.tiny and setup.model == "bert_small" else [])
    return found + (["model.pool=mean"] if setup.model == "bert_small" else [])  # the whole last layer, as transformers' model computes it


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """The record of one run."""
    import mpx

    folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    with folder as path, contextlib.redirect_stdout(sys.stderr):
        return mpx.run([*overrides, "trainer.progress=off", f"output_dir={path}"])


@contextlib.contextmanager
def as_for_a_long_run() -> Iterator[None]:
    """speed=auto compiles and searches only where the run is long enough to pay for it; those measured here are not."""
    from mpx.acceleration import decide
    from mpx.acceleration.payoff import Figures

    choose, pays = decide.choose, Figures(compile_s=0.0, saves=0.5, step_ms=1000.0, known=True)
    decide.choose = lambda *wishes: choose(*wishes[:-1], replace(wishes[-1], steps=10**6, batches=10**6, figures=pays))
    try:
        yield
    finally:
        decide.choose = choose
