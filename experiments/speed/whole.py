"""One whole run, with evaluation each epoch, logging and checkpoints, beside the throughput of its own
steps.
"""

import struct
import tempfile
from pathlib import Path
from typing import Any

import torch
from setups import Setup, train
from torch import Tensor

EPOCHS, SIZES = 10, {"train": 60_000, "t10k": 10_000}  # of Fashion-MNIST's files
HELD_OUT, TINY_STEPS = 2000, 4  # images for validation; batches in an epoch of a trial
TINY = (
    f"data.eval_batch_size=4 trainer.limit_train_batches={TINY_STEPS} trainer.warmup_steps=2 "
    "trainer.limit_val_batches=2 trainer.limit_test_batches=2"
)


class Whole:
    """Ten epochs of Fashion-MNIST; where its files are not, of made-up images in files of its sizes, and the
    note says so.
    """

    def __init__(self, setup: Setup, data_root: str | None):
        self.setup = setup
        files = data_root and (Path(data_root) / "FashionMNIST" / "raw").is_dir()
        self.epochs = 2 if setup.tiny else EPOCHS
        self.steps = TINY_STEPS if setup.tiny else (SIZES["train"] - HELD_OUT) // setup.batch  # in an epoch
        self.about = (
            f"{self.epochs} epochs of "
            f"{'Fashion-MNIST' if files else 'made-up images in files of Fashion-MNIST sizes'}"
        )
        if not files:
            self.made = tempfile.TemporaryDirectory()  # kept as long as this object
            data_root = self.made.name
            make(Path(data_root) / "FashionMNIST" / "raw")
        lr = 0.001 if setup.tiny else 0.1  # batches of four images would diverge by rounding, on some CPUs
        self.overrides = [f"model={setup.model}", f"precision={setup.precision}", "data=fashion_mnist"]
        self.overrides += [f"data.root={data_root}", "data.download=false", f"data.batch_size={setup.batch}"]
        self.overrides += [
            f"trainer.max_epochs={self.epochs}",
            f"optimizer.lr={lr}",
            *(TINY.split() if setup.tiny else []),
        ]

    def run(self) -> dict[str, Any]:
        record = train(self.overrides)
        if record["status"] != "completed":
            raise RuntimeError(f"the run is {record['status']}")
        return record


def make(folder: Path) -> None:
    """Grey noise whose brightness tells the class, in Fashion-MNIST's four files."""
    folder.mkdir(parents=True)
    for part, count in SIZES.items():
        labels = (torch.arange(count) % 10).to(torch.uint8)
        noise = torch.randint(
            0, 64, (count, 28, 28), generator=torch.Generator().manual_seed(count), dtype=torch.uint8
        )
        write_idx(folder / f"{part}-images-idx3-ubyte", noise.add_(labels[:, None, None] * 21))
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels)


def write_idx(path: Path, values: Tensor) -> None:
    path.write_bytes(
        struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape) + values.numpy().tobytes()
    )


class Part:
    """`whole`: samples over the time to train; `steps`: the throughput that leaves out everything but steps.
    Of the same run.

    Its note says what the time to train went into.
    """

    def __init__(self, whole: Whole, part: str):
        self.whole, self.part = whole, part

    def samples_per_s(self) -> float:
        taken = getattr(self.whole, "record", None)
        if taken is None:
            self.whole.record = taken = self.whole.run()
        else:
            self.whole.record = None  # the other part has read it; the next round runs anew
        speed, precision = taken["speed"], taken["precision"]
        self.exclusive = speed["exclusive"]
        self.steps = precision["optimizer_steps"] + precision["skipped_steps"]
        parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in speed["time_to_train_parts_s"].items())
        self.note = f"{self.whole.about}; {speed['time_to_train_s']:.3f} s: {parts}"
        if self.part == "steps":
            return speed["train_samples_per_s"]
        return self.steps * self.whole.setup.batch / speed["time_to_train_s"]

    def close(self) -> None:
        """Nothing is kept between runs."""
