"""Data sets as a model sees them: `load(cfg.data)` reads and checks files, datamodule.py feeds them to
Lightning.

    data = load(cfg.data)                      # Data: .spec .sizes .train .val .test, all on the CPU

A new set needs one function `cfg -> Data` in one file, its lines in `SETS` and `LICENCES`, its name and what
it refuses in mpx/settings/data.py, a file in conf/data/, and a line in docs/own-data.md or docs/own-model.md.
mpx/settings/reachable.py looks for its files.

    spec.py          what a data set looks like to a model; tasks.py: its loss and metrics
    splits.py        the contents of a split, and how a batch is taken from it (augment.py)
    order.py         the order of the samples, and their seeds
    lengths.py       texts of similar length in a batch
    loaders.py       the loaders that Lightning sees, made by datamodule.py; they get batches from readers.py
    image_sets.py    images in memory; synthetic.py: samples without files
    image_folder.py  images that stay on disk, decoded and cut by decoding.py
    text_sets.py     texts with labels: SST-2, CSV; huggingface.py: those that the datasets library reads
    targets.py       labels, and the parts of labelled texts; tokenizer.py: texts to token ids
    language.py      texts to continue
    custom.py        what a function of the user's makes
    files.py         finding, reading and downloading files
"""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpx.data.splits import Data
from mpx.errors import UserError
from mpx.settings.data import OWN_FAMILIES, check_data, family
from mpx.settings.values import as_dict

SETS = {  # family of the data -> "module:function"; a module is imported when its set is chosen
    "digits": "image_sets:load_digits",
    "mnist": "image_sets:load_mnist",
    "fashion_mnist": "image_sets:load_mnist",
    "cifar10": "image_sets:load_cifar10",
    "image_folder": "image_folder:load",
    "sst2": "text_sets:load_sst2",
    "text_csv": "text_sets:load_csv",
    "wikitext2": "language:load_wikitext2",
    "text_file": "language:load_text_file",
    "huggingface": "huggingface:load",
    "custom": "custom:load",
    "synthetic": "synthetic:load",
}
NONE_STATED = "stated by the publisher: none beyond citation"
LICENCES = {  # family of the data -> the licence of its files, as their publisher states it
    "digits": "CC BY 4.0 (UCI Machine Learning Repository)",
    "mnist": NONE_STATED,
    "fashion_mnist": "MIT",
    "cifar10": NONE_STATED,
    "sst2": NONE_STATED,
    "wikitext2": "CC BY-SA",
    "synthetic": "none needed: the samples are random numbers",
    **dict.fromkeys(OWN_FAMILIES, "yours"),
}

__all__ = ["Data", "load", "unlabelled"]


def load(data_cfg) -> Data:
    """Read and split the set that `data_cfg` chooses.

    data_cfg: the settings of conf/data/<name>.yaml as a DictConfig, a mapping or a namespace, each of which
    keeps its rule; the set's function gets a namespace. Uses no accelerator.
    Raises UserError for settings that do not fit together and for a file that is missing or damaged.
    """
    settings = as_dict(data_cfg)
    check_data(settings)
    module, function = SETS[family(settings)].split(":")
    return getattr(import_module(f"mpx.data.{module}"), function)(SimpleNamespace(**settings))


def unlabelled(data_cfg, data: Data, given: str) -> tuple[list[str], Any]:
    """(what each sample is called: its path, or its text; the samples as a split whose labels mean nothing).

    data_cfg: of the run's `data`, as whose test set they are made. given: a folder of images, or a CSV or TSV
    file with the column of the texts. Raises UserError if it does not fit.
    """
    kind, tasks = family(data_cfg), ("classification", "regression")
    if kind not in ("image_folder", "text_csv") or data.spec.task not in tasks:
        raise UserError(
            f"predict={given} needs a run of data=image_folder or data=text_csv with data.task="
            f"{' or '.join(tasks)}; this one has data={kind}, data.task={data.spec.task}. Leave it out."
        )
    module = import_module(f"mpx.data.{SETS[kind].partition(':')[0]}")
    return module.unlabelled(SimpleNamespace(**data_cfg), data, Path(given).expanduser())
