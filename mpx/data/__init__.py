"""Data sets as a model sees them: `load(cfg.data)` reads and checks files, `DataModule` feeds them to Lightning.

    data = load(cfg.data)                      # Data: .spec .sizes .train .val .test, all on the CPU
    trainer.fit(model, datamodule=DataModule(data, cfg.data, seed=0))

A new set needs one function `cfg -> Data` in one file, one line in `SETS`, its licence in licences.py, its name and what it refuses in
mpx/settings/data.py, a file in conf/data/, and a line in docs/own-data.md or docs/own-model.md. mpx/settings/reachable.py finds its files.

    splits.py       the contents of a split, and how a batch is taken from it; order.py: the order of the samples, and their seeds
    loaders.py      the loaders that Lightning sees (made by datamodule.py); they read from the device (resident.py) or from worker
                    processes (workers.py)
    images.py       image sets in memory (digits.py, mnist.py, cifar10.py), augmented by augment.py; idx.py and pickles.py read their files
    image_folder.py images that stay on disk; synthetic.py: samples without files
    text_sets.py    texts with labels; language.py: texts to continue
    huggingface.py  data sets in the files of the datasets library; custom.py: what a function of the user's makes (checked
                    by custom_checks.py)
    encode.py       texts to token ids, with tokenizer.py and cache.py; tables.py and sst2_files.py read their files, targets.py labels
    files.py        finding and reading files; download.py: fetching them; licences.py: what their publishers allow
"""

from importlib import import_module
from types import SimpleNamespace

from mpx.data.splits import Data
from mpx.settings.data import check_batch, check_data, family
from mpx.settings.reachable import check_files
from mpx.settings.values import checked

SETS = {  # family of the data -> "module:function"; a module is imported when its set is chosen
    "digits": "digits:load",
    "mnist": "mnist:load",
    "fashion_mnist": "mnist:load",
    "cifar10": "cifar10:load",
    "image_folder": "image_folder:load",
    "sst2": "text_sets:load_sst2",
    "text_csv": "text_sets:load_csv",
    "wikitext2": "language:load_wikitext2",
    "text_file": "language:load_text_file",
    "huggingface": "huggingface:load",
    "custom": "custom:load",
    "synthetic": "synthetic:load",
}

__all__ = ["Data", "DataModule", "load"]


def load(data_cfg) -> Data:
    """Read, check and split the set that `data_cfg` chooses.

    data_cfg: the settings of conf/data/<name>.yaml as a DictConfig, a mapping or a namespace; the set's function gets a namespace. Uses no
    accelerator.
    Raises UserError for a setting that breaks its rule (mpx/settings/) and for a file that is missing or damaged.
    """
    settings = checked("data", data_cfg)
    check_data(settings)
    check_files(settings)
    module, function = SETS[family(settings)].split(":")
    data = getattr(import_module(f"mpx.data.{module}"), function)(SimpleNamespace(**settings))
    check_batch(settings, len(data.train))
    return data


def __getattr__(name: str):
    """Import `DataModule` on demand: importing Lightning takes seconds, and `load` does not need it."""
    if name == "DataModule":
        from mpx.data.datamodule import DataModule

        return DataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
