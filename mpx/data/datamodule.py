"""The data module for Lightning. No other file of mpx/data imports Lightning."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch

from mpx.data.lengths import Lengths
from mpx.data.loaders import EvalLoader, TrainLoader
from mpx.data.order import generator
from mpx.data.readers import Reader, images_per_s, reader_of
from mpx.data.splits import Data
from mpx.system.launch import launch

# A data set stays on a GPU if it takes less than 1/SHARE of what is free before the model is there.
SHARE = 4


class DataModule(pl.LightningDataModule):
    """Makes loaders on the trainer's device. They shard themselves by rank, so the Trainer needs
    use_distributed_sampler=False.

    cfg: the settings that `data` was loaded with. loader: "resident", "workers" or "device". lengths: of the
    batches of texts, by the split; {}: those of the data.
    """

    def __init__(self, data: Data, cfg: Any, seed: int, loader: str, lengths: Mapping[str, Lengths]):
        super().__init__()
        self.data, self.cfg, self.seed, self.loader, self.lengths = data, cfg, seed, loader, lengths
        self._readers: dict[str, Reader] = {}  # of each split

    def train_dataloader(self) -> TrainLoader:
        reader, rank, world = self._reader("train")
        return TrainLoader(
            reader, len(self.data.train), self.cfg.batch_size, self.seed, rank, world,
            self.lengths.get("train"),
        )  # fmt: skip

    def val_dataloader(self) -> EvalLoader:
        return self._eval("val")

    def test_dataloader(self) -> EvalLoader:
        return self._eval("test")

    def padding(self, world: int) -> dict[str, Any]:
        """What an epoch of texts consists of, for the record; {} for other data. world: number of ranks."""
        if "train" not in self.lengths:
            return {}
        lengths = self.lengths["train"]
        steps = lengths.train_steps(self.cfg.batch_size * world, self.seed, epoch=0)
        return {
            "lengths": list(lengths.allowed),
            "padding_fraction": lengths.padding_fraction(steps),
            "tokens_per_sample": float(lengths.tokens.double().mean()),
        }

    def teardown(self, stage: str) -> None:
        """Stop worker processes and free decoded images at the end of fit, validate or test."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def on_exception(self, exception: BaseException) -> None:
        """As `teardown`, which Lightning does not call after a failure."""
        self.teardown("fit")

    def _eval(self, name: str) -> EvalLoader:
        reader, rank, world = self._reader(name)
        size, lengths = self.cfg.eval_batch_size, self.lengths.get(name)
        return EvalLoader(reader, self.data.sizes[name], size, rank, world, lengths)

    def _reader(self, name: str) -> tuple[Reader, int, int]:
        """(reader of the split on the trainer's device, rank, number of ranks)."""
        trainer = self.trainer
        assert trainer is not None, "Lightning asks for loaders"
        if name not in self._readers:
            split, device = getattr(self.data, name), trainer.strategy.root_device
            self._readers[name] = reader_of(self.loader, split, self.seed, device, self.cfg.workers)
        return self._readers[name], trainer.global_rank, trainer.world_size


def choose_loader(
    wanted: str, splits: Sequence[Any], device: torch.device, workers: int | str
) -> tuple[str, str]:
    """("resident", "workers" or "device", why). wanted: data.loader. splits: train, and those that stay on
    the device beside it. workers: data.workers.
    """
    split = splits[0]
    if split.nbytes is None:
        return "workers", "samples are made one by one"
    if wanted != "auto":
        return wanted, f"data.loader={wanted}"
    if device.type != "cuda":
        return ("workers", "images in files") if split.on_disk else ("resident", "in memory as they are")
    free, nbytes = torch.cuda.mem_get_info(device)[0], sum(part.nbytes or 0 for part in splits)
    fits = nbytes * SHARE < free
    share = "less" if fits else "not less"
    why = f"{nbytes / 2**20:,.0f} MiB, {share} than 1/{SHARE} of {free / 2**20:,.0f} MiB that are free"
    if fits or not split.on_disk:
        return "resident" if fits else "workers", why
    if launch().world > 1:
        return "workers", f"{why}; on several devices loaders are not measured"
    order = torch.randperm(len(split), generator=generator("loader"))
    # from both ends, so that few files are read a second time, which is faster
    orders = {"workers": order, "device": order.flip(0)}
    rates = {
        loader: images_per_s(reader_of(loader, split, 0, device, workers), order)
        for loader, order in orders.items()
    }
    said = ", ".join(f"{loader} {rate:,.0f}" for loader, rate in rates.items())
    return max(rates, key=rates.__getitem__), f"images/s: {said}"
