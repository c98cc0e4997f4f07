"""Data sets as a model sees them: `load(cfg.data)` reads and checks files, `DataModule` feeds them to Lightning.

    data = load(cfg.data)                      # Data: .spec .sizes .train .val .test, all on the CPU
    trainer.fit(model, datamodule=DataModule(data, cfg.data, seed=0))

A new set is one function `cfg -> Data` in one file, one line in `SETS`, one file in conf/data/.

    splits.py       what a split holds, and how a batch is taken from it; order.py: which sample comes when
    loaders.py      what Lightning sees (datamodule.py); batches come from the device (resident.py) or from processes (workers.py)
    images.py       sets of images in memory, with augment.py; idx.py and pickles.py read their files
    encode.py       texts to token ids, with tokenizer.py and cache.py; tables.py and sst2_files.py read their files
    config.py       settings and the errors in them; files.py and download.py: files and theirs
"""

from importlib import import_module

from mpx.data.config import fields, one_of, whole
from mpx.data.splits import Data
from mpx.errors import UserError

SETS = {  # data.name -> "module:function"; modules are imported only when chosen
    "digits": "digits:load",
    "mnist": "mnist:load",
    "fashion_mnist": "mnist:load",
    "cifar10": "cifar10:load",
    "image_folder": "image_folder:load",
    "sst2": "text_sets:load_sst2",
    "text_csv": "text_sets:load_csv",
    "wikitext2": "language:load_wikitext2",
    "text_file": "language:load_text_file",
    "synthetic": "synthetic:load",
}

__all__ = ["Data", "DataModule", "load"]


def load(data_cfg) -> Data:
    """Read, check and split the set that `data_cfg.name` chooses (fields: conf/data/<name>.yaml).

    Raises UserError, one line, for a setting or a file that is missing, wrong or damaged. Touches no accelerator.
    """
    cfg = fields(data_cfg)
    one_of("data.name", cfg.name, SETS)
    one_of("data.loader", cfg.loader, ("auto", "resident", "workers"))
    whole("data.batch_size", cfg.batch_size, low=1)
    whole("data.eval_batch_size", cfg.eval_batch_size, low=1)
    if cfg.workers != "auto":
        whole("data.workers", cfg.workers, low=0, otherwise="auto or ")
    module, function = SETS[cfg.name].split(":")
    data = getattr(import_module(f"mpx.data.{module}"), function)(cfg)
    if cfg.batch_size > len(data.train):
        raise UserError(
            f"data.batch_size={cfg.batch_size} is larger than the {len(data.train)} train samples of data={cfg.name}: "
            f"at most {len(data.train)} is allowed, lower data.batch_size"
        )
    return data


def __getattr__(name: str):
    """`DataModule` on demand: importing Lightning takes seconds, and `load` does not need it."""
    if name == "DataModule":
        from mpx.data.datamodule import DataModule

        return DataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
