"""The same models through other trainers, Lightning's and transformers', as they come and tuned by their own
switches.

Inputs lie on the device. cuDNN times its algorithms in all of them.
"""

import contextlib
import os
import tempfile
import time
import warnings
from typing import Any

import torch
from hand import BATCHES, COMPILED, WARMUP, batches, bert, build, half, optimizer_of, searching, synchronize
from setups import Setup, device
from torch.nn.functional import cross_entropy


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


BARE = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
# of torch.compile; else reduce-overhead, which records CUDA graphs of the passes
MODE = {"resnet50": "default"}


class Lightning:
    """Trainer's defaults: logger, checkpoints and progress bar, its own precision plugin, an optimizer that
    is not fused.

    tuned: without the first three, with a fused optimizer, channels_last, and torch.compile where it takes
    the model.
    """

    def __init__(self, setup: Setup, *, tuned: bool):
        self.setup, self.tuned = setup, tuned
        self.note = "tuned" if tuned else "Trainer defaults, cudnn.benchmark"

    def samples_per_s(self) -> float:
        import pytorch_lightning as pl

        window = Window(self.setup)
        with tempfile.TemporaryDirectory() as folder, quiet(), searching(self.setup):
            steps, bare = WARMUP + self.setup.steps, BARE if self.tuned else {}
            here = lightning_here(self.setup) | bare | {"max_steps": steps, "default_root_dir": folder}
            module = lightning_module(self.setup, window, tuned=self.tuned)
            pl.Trainer(**here).fit(module, Ready(self.setup, steps, channels_last=self.tuned))
        return window.samples_per_s()


class Ready:
    """A loader of batches that lie on the device."""

    def __init__(self, setup: Setup, count: int, *, channels_last: bool):
        self.data, self.count = batches(setup, channels_last=channels_last), count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return (self.data[i % BATCHES] for i in range(self.count))


def lightning_here(setup: Setup) -> dict[str, Any]:
    """The arguments of Trainer that say where and in what format it computes."""
    name = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed", None: "32-true"}[half(setup)]
    accelerator = "gpu" if device().type == "cuda" else "cpu"
    return {"benchmark": True, "precision": name, "accelerator": accelerator, "devices": 1}


def lightning_module(setup: Setup, window: Window, *, tuned: bool) -> Any:
    """window: told of every step."""
    import pytorch_lightning as pl

    compiled = tuned and setup.model in COMPILED and device().type == "cuda"

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = build(setup, look_up=not tuned)
            if tuned and not setup.text:
                self.model.to(memory_format=torch.channels_last)
            self.run = self.model
            if compiled:
                self.run = torch.compile(self.model, mode=MODE.get(setup.model, "reduce-overhead"))

        def training_step(self, batch, index):
            loss = cross_entropy(self.run(batch[0]), batch[1])
            self.log("train/loss", loss)
            return loss

        def on_train_batch_end(self, outputs, batch, batch_idx):
            window.step()

        def configure_optimizers(self):
            return optimizer_of(setup, self.model, fused=tuned)

    return Module()


class Transformers:
    """Trainer's defaults, of BERT alone, with its fused optimizer. It needs accelerate.

    tuned: with torch.compile; without clipping, which no other contender does, and without a look at the loss
    of each step.
    """

    def __init__(self, setup: Setup, *, tuned: bool):
        import accelerate  # noqa: F401 - the reason in one line, where it is not there

        self.setup, self.tuned = setup, tuned
        self.note = "tuned" if tuned else "Trainer defaults"

    def samples_per_s(self) -> float:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        setup, window = self.setup, Window(self.setup)
        data = [{"input_ids": x, "labels": y} for x, y in batches(setup, channels_last=False)]

        class Timing(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                window.step()

        steps = WARMUP + setup.steps
        tuned = {
            "torch_compile": device().type == "cuda",
            "max_grad_norm": 0.0,
            "logging_nan_inf_filter": False,
        }
        tuned = tuned if self.tuned else {}
        with tempfile.TemporaryDirectory() as folder, quiet(), searching(setup):
            arguments = TrainingArguments(
                output_dir=folder, max_steps=steps, per_device_train_batch_size=setup.batch, report_to="none",
                learning_rate=1e-4,
                fp16=half(setup) == torch.float16, bf16=half(setup) == torch.bfloat16,
                use_cpu=device().type == "cpu",
                dataloader_pin_memory=False, **tuned,  # they are on the device already
            )  # fmt: skip
            order = range(setup.batch * steps)  # each batch of indices stands for one that is ready
            trainer = Trainer(
                bert(setup, look_up=not self.tuned), arguments, train_dataset=Indices(len(order)),
                callbacks=[Timing()],
                data_collator=lambda indices: dict(data[(indices[0] // setup.batch) % BATCHES]),
            )  # fmt: skip
            trainer.train()
        return window.samples_per_s()


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
