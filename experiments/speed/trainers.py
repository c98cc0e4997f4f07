"""The same models through other trainers as they come: Lightning's Trainer, and transformers' Trainer. Inputs lie on the device."""

import contextlib
import os
import tempfile
import time
import warnings
from typing import Any

import torch
from hand import BATCHES, WARMUP, batches, bert, build, half, optimizer_of, synchronize
from setups import Setup, device
from torch.nn.functional import cross_entropy

from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls


class Window:
    """Told of every finished step; times those after the warm-up."""

    def __init__(self, setup: Setup):
        self.setup, self.steps, self.seconds = setup, 0, None

    def step(self) -> None:
        self.steps += 1
        if self.steps == WARMUP:
            synchronize()
            self.start = time.perf_counter()
        elif self.steps == WARMUP + self.setup.steps:
            synchronize()
            self.seconds = time.perf_counter() - self.start

    def samples_per_s(self) -> float:
        return self.setup.batch * self.setup.steps / self.seconds


class Lightning:
    """Trainer's defaults: logger, checkpoints and progress bar, its own precision plugin, an optimizer that is not fused."""

    note = "Trainer defaults"

    def __init__(self, setup: Setup, kind: str):
        self.setup = setup

    def samples_per_s(self) -> float:
        import pytorch_lightning as pl

        window = Window(self.setup)
        with tempfile.TemporaryDirectory() as folder, quiet(), float32_matmuls(MODES[self.setup.precision], emulate=False):
            steps = WARMUP + self.setup.steps
            trainer = pl.Trainer(**lightning_here(self.setup), max_steps=steps, default_root_dir=folder)
            trainer.fit(lightning_module(self.setup, window), Ready(self.setup, steps))
        return window.samples_per_s()

    def close(self) -> None:
        """Nothing is kept between runs."""


class Ready:
    """A loader of batches that lie on the device."""

    def __init__(self, setup: Setup, count: int):
        self.data, self.count = batches(setup, channels_last=False), count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return (self.data[i % BATCHES] for i in range(self.count))


def lightning_here(setup: Setup) -> dict[str, Any]:
    """The arguments of Trainer that say where and in what format it computes."""
    name = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed", None: "32-true"}[half(setup)]
    return {"precision": name, "accelerator": "gpu" if device().type == "cuda" else "cpu", "devices": 1}


def lightning_module(setup: Setup, window: Window | None = None) -> Any:
    """window: told of every step."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = build(setup)

        def training_step(self, batch, index):
            loss = cross_entropy(self.model(batch[0]), batch[1])
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val/accuracy", (self.model(batch[0]).argmax(-1) == batch[1]).float().mean())

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if window is not None:
                window.step()

        def configure_optimizers(self):
            return optimizer_of(setup, self.model, fused=False)

    return Module()


class Transformers:
    """Trainer's defaults, of BERT alone. It needs accelerate."""

    note = "Trainer defaults"

    def __init__(self, setup: Setup, kind: str):
        import accelerate  # noqa: F401 - the reason in one line, where it is not there

        self.setup = setup

    def samples_per_s(self) -> float:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        setup, window = self.setup, Window(self.setup)
        data = [{"input_ids": x, "labels": y} for x, y in batches(setup, channels_last=False)]

        class Timing(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                window.step()

        steps = WARMUP + setup.steps
        with tempfile.TemporaryDirectory() as folder, quiet(), float32_matmuls(MODES[setup.precision], emulate=False):
            arguments = TrainingArguments(
                output_dir=folder, max_steps=steps, per_device_train_batch_size=setup.batch, report_to="none", learning_rate=1e-4,
                fp16=half(setup) == torch.float16, bf16=half(setup) == torch.bfloat16, use_cpu=device().type == "cpu",
                dataloader_pin_memory=False,  # they are on the device already
            )  # fmt: skip
            order = range(setup.batch * steps)  # each batch of indices stands for one that is ready
            trainer = Trainer(
                bert(setup), arguments, train_dataset=Indices(len(order)), callbacks=[Timing()],
                data_collator=lambda indices: dict(data[(indices[0] // setup.batch) % BATCHES]),
            )  # fmt: skip
            trainer.train()
        return window.samples_per_s()

    def close(self) -> None:
        """Nothing is kept between runs."""


class Indices(torch.utils.data.Dataset):
    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


@contextlib.contextmanager
def quiet() -> Any:
    """Progress bars go nowhere, but are drawn."""
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
