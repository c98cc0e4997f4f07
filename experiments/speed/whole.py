"""One whole run, with evaluation each epoch, logging and checkpoints, beside the throughput of its own steps."""

from pathlib import Path
from typing import Any

from front_door import train
from setups import Setup

EPOCHS, SAMPLES = 10, 58_000  # Fashion-MNIST's train split without the 2,000 for validation


class Whole:
    """Ten epochs of Fashion-MNIST; where its files are not, of made-up images in its sizes, and the note says so."""

    def __init__(self, setup: Setup, data_root: str | None):
        self.setup = setup
        files = data_root and (Path(data_root) / "FashionMNIST" / "raw").is_dir()
        epochs, samples = (2, 64) if setup.tiny else (EPOCHS, SAMPLES)
        images = "Fashion-MNIST" if files else f"{samples:,} made-up images in Fashion-MNIST's shape"
        self.note = f"{epochs} epochs of {images}"
        shape = "data.shape=[1,8,8]" if setup.tiny else "data.shape=[1,28,28]"
        made = ["data=synthetic", shape, "data.classes=10", f"data.samples={samples}", "data.eval_batch_size=1000"]
        data = ["data=fashion_mnist", f"data.root={data_root}", "data.download=false"] if files else made
        self.overrides = [f"model={setup.model}", f"precision={setup.precision}", *data, f"data.batch_size={setup.batch}"]
        self.overrides += [f"trainer.max_epochs={epochs}", "optimizer.lr=0.1"]

    def run(self) -> dict[str, Any]:
        record = train(self.overrides)
        if record.get("status") != "completed":
            raise RuntimeError(record["error"])
        return record


class Part:
    """`whole`: samples over the time to train; `steps`: the throughput that leaves out everything but steps. Of the same run."""

    def __init__(self, whole: Whole, part: str):
        self.whole, self.part, self.note = whole, part, whole.note

    def samples_per_s(self) -> float:
        taken = getattr(self.whole, "record", None)
        if taken is None:
            self.whole.record = taken = self.whole.run()
        else:
            self.whole.record = None  # the other part has read it; the next round runs anew
        speed, precision = taken["speed"], taken["precision"]
        self.exclusive = speed["exclusive"]
        self.steps = precision["optimizer_steps"] + precision["skipped_steps"]
        if self.part == "steps":
            return speed["train_samples_per_s"]
        return self.steps * self.whole.setup.batch / speed["time_to_train_s"]

    def close(self) -> None:
        """Nothing is kept between runs."""
