"""The splits as Lightning wants them; the only file of this room that imports Lightning."""

import pytorch_lightning as pl
import torch

from mpx.data.config import fields
from mpx.data.loaders import EvalLoader, TrainLoader
from mpx.data.resident import ResidentReader
from mpx.data.splits import Data
from mpx.data.workers import WorkerReader
from mpx.errors import UserError

SHARE = 4  # resident if the train tensors take less than 1/SHARE of a GPU's free memory: the rest is for the model


class DataModule(pl.LightningDataModule):
    """Makes loaders on the trainer's device, sharded by its ranks (so make the Trainer with use_distributed_sampler=False).

    loader: "resident" or "workers", as `choose_loader` says; None: chosen when the trainer's device is known.
    """

    def __init__(self, data: Data, data_cfg, seed: int, loader: str | None = None):
        super().__init__()
        self.data, self.cfg, self.seed, self.loader = data, fields(data_cfg), seed, loader
        self._readers = []

    def train_dataloader(self) -> TrainLoader:
        reader, rank, world = self._reader(self.data.train)
        return TrainLoader(reader, len(self.data.train), self.cfg.batch_size, self.seed, rank, world)

    def val_dataloader(self) -> EvalLoader:
        return self._eval(self.data.val)

    def test_dataloader(self) -> EvalLoader:
        return self._eval(self.data.test)

    def teardown(self, stage: str) -> None:
        """Stop worker processes at the end of fit, validate or test."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def on_exception(self, exception: BaseException) -> None:
        """The same after a failure: Lightning skips teardown then."""
        self.teardown("fit")

    def _eval(self, split) -> EvalLoader:
        reader, rank, world = self._reader(split)
        return EvalLoader(reader, len(split), self.cfg.eval_batch_size, rank, world)

    def _reader(self, split) -> tuple[ResidentReader | WorkerReader, int, int]:
        """(reader of the split on the trainer's device, rank, world)."""
        device = self.trainer.strategy.root_device
        if self.loader is None:
            self.loader, _ = choose_loader(self.cfg.loader, self.data.train.nbytes, device)
        if self.loader == "resident":
            reader = ResidentReader(split, self.seed, device)
        else:
            reader = WorkerReader(split, self.seed, device, self.cfg.workers)
        self._readers.append(reader)
        return reader, self.trainer.global_rank, self.trainer.world_size


def choose_loader(wanted: str, nbytes: int | None, device: torch.device) -> tuple[str, str]:
    """("resident" or "workers", why) for train tensors of `nbytes` (None: they stay on disk). Raises UserError."""
    if nbytes is None:
        if wanted == "resident":
            raise UserError("data.loader=resident is not possible for files read one by one: use data.loader=workers or auto")
        return "workers", "files are read one by one"
    if wanted != "auto":
        return wanted, f"data.loader={wanted}"
    if device.type != "cuda":
        return "resident", "in memory as they are"
    free = torch.cuda.mem_get_info(device)[0]
    fits = nbytes * SHARE < free
    share = "less" if fits else "not less"
    return "resident" if fits else "workers", f"{nbytes / 2**20:,.0f} MiB, {share} than 1/{SHARE} of {free / 2**20:,.0f} MiB that are free"
