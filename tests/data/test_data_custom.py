"""Data that a function of the user's makes: tensors and Datasets, for each task, and what is not usable in
one line.
"""

import random
import re
import sys

import numpy as np
import pytest
import torch
from few_steps import FEW_STEPS

import mpx.data
from mpx.data.readers import WorkerReader
from mpx.errors import UserError

SOURCE = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset

def tensors(size=40, shift=0):
    def part(n):
        y = torch.arange(n) % 3
        return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(n + shift)) + y[:, None, None, None], y
    return part(size), part(12), part(12)

class Noisy(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        return torch.rand(1, 8, 8) + random.random() + np.random.rand(), i % 3

def datasets(): return Noisy(40), Noisy(12), Noisy(12)
def arrays(): return tuple((np.zeros((n, 3, 8, 8), np.uint8) + 255, np.arange(n) % 2) for n in (20, 8, 8))
def values(width=1):
    x, _ = tensors()[0]
    return tuple((x[:n], x[:n].mean((1, 2, 3)) if width == 1 else x[:n, 0, 0, :width]) for n in (40, 12, 12))
def many():
    x, y = tensors()[0]
    return tuple((x[:n], torch.nn.functional.one_hot(y[:n], 3)) for n in (40, 12, 12))
def ids(words=6):
    x = torch.arange(40 * words).view(40, words) % 20 + 1
    return tuple((x[:n], x[:n] % 2) for n in (40, 12, 12))
def texts(kind="int64"):
    return tuple((x.to(getattr(torch, kind)), y[:, 0]) for x, y in ids())
def holes(value):
    (x, y), *rest = tensors()
    return (x, torch.where(torch.arange(len(x)) == 5, torch.tensor(value), y)), *rest
class Pairs(Dataset):
    def __init__(self, x, y): self.x, self.y = x, y
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i], self.y[i]
def read_texts(): return tuple(Pairs(x, y) for x, y in texts())
def two(): return tensors()[:2]
def flat(): return tuple((torch.zeros(4, 64), torch.zeros(4, dtype=torch.long)) for _ in range(3))
def other():
    a, b, c = tensors()
    return a, b, (c[0][:, :, :4], c[1])
def large():
    a, b, c = tensors()
    return a, b, (c[0], c[1] + 5)
class Ragged(Noisy):
    def __getitem__(self, i): return torch.zeros(1, 8, 8 + (i == 7)), 0
def ragged(): return Ragged(40), Ragged(3), Ragged(3)
class Pictures(Noisy):
    def __getitem__(self, i):
        from PIL import Image
        return Image.new("L", (8, 8)), 0
def pictures(): return Pictures(40), Pictures(3), Pictures(3)
"""


@pytest.fixture
def custom(config, tmp_path, monkeypatch):
    """custom("tensors", kind="image") -> Data."""
    (tmp_path / "my_function.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_function", raising=False)

    def make(name, **more):
        return mpx.data.load(
            config("custom", **{"_target_": f"my_function.{name}", "batch_size": 4, "workers": 0, **more})
        )

    return make


def batch(split, *index, epoch=0, seed=0):
    index = torch.tensor(index)
    plan = split.plan(seed, epoch)
    rows = None if plan is None else plan[index]
    return split.finish(*split.raw(index, rows), rows)


def test_tensors(custom):
    data = custom("tensors", kwargs={"size": 30})
    assert data.sizes == {"train": 30, "val": 12, "test": 12}
    assert (data.spec.kind, data.spec.shape, data.spec.classes, data.spec.task) == (
        "image",
        (1, 8, 8),
        3,
        "classification",
    )
    x, y = batch(data.train, 3, 4)
    assert (x.dtype, y.tolist()) == (torch.float32, [0, 1])
    assert data.checksums == custom("tensors", kwargs={"size": 30}).checksums
    assert data.checksums[0] != custom("tensors", kwargs={"size": 30, "shift": 1}).checksums[0]


def test_bytes_are_scaled(custom):
    data = custom("arrays")
    assert batch(data.train, 0)[0].unique().tolist() == [1.0]
    assert data.spec.classes == 2


@pytest.mark.parametrize(
    ("name", "task", "classes", "y"),
    [
        ("values", "regression", 1, torch.float32),
        ("many", "multilabel", 3, torch.float32),
        ("ids", "tokens", 2, torch.int64),
    ],
)
def test_tasks(custom, name, task, classes, y):
    data = custom(name, task=task, kind="text" if task == "tokens" else "image")
    assert (data.spec.task, data.spec.classes) == (task, classes)
    made = batch(data.train, 0, 1)[1]
    assert (made.dtype, made.shape[0]) == (y, 2)


def test_texts(custom):
    data = custom("texts", kind="text", pad_id=0)
    assert (data.spec.kind, data.spec.shape, data.spec.vocab_size, data.spec.pad_id, data.spec.padded) == (
        "text",
        (6,),
        21,
        0,
        True,
    )
    assert batch(data.train, 0)[0].dtype == torch.int64
    assert custom("texts", kind="text", vocab_size=50).spec.padded is False
    assert custom("texts", kind="text", pad_id=30).spec.vocab_size == 31
    assert custom("read_texts", kind="text", vocab_size=21, classes=2).spec.vocab_size == 21


def test_a_dataset_draws_by_seed_epoch_and_sample(custom):
    data = custom("datasets", classes=3)
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    first, other = batch(data.train, 0, 1)[0], batch(data.train, 0, 1, epoch=1)[0]
    assert torch.equal(first[1], batch(data.train, 1)[0][0])
    assert not torch.equal(first, other)
    assert not torch.equal(first, batch(data.train, 0, 1, seed=1)[0])
    assert states[0] == random.getstate()
    assert torch.equal(states[1], torch.get_rng_state())
    assert (states[2] == np.random.get_state()[1]).all()
    assert data.checksums == custom("datasets", classes=3).checksums
    assert data.train.nbytes is None


def test_worker_processes_make_the_same_samples(custom):
    data = custom("datasets", classes=3)
    index = torch.tensor([5, 2])
    found = []
    for workers in (0, 1):
        reader = WorkerReader(data.train, 0, torch.device("cpu"), workers)
        found += [x for x, _ in reader.batches(0, [index])]
        reader.close()
    assert torch.equal(*found)


MISTAKES = [
    (
        "two",
        {},
        "data._target_=my_function.two returned a tuple of 2; it must return three: the train, "
        "validation and test data.",
    ),
    (
        "flat",
        {},
        "an x of the train data is torch.float32 of shape [64]; data.kind=image needs floats or "
        "uint8 [C, H, W]. Change it, or",
    ),
    (
        "other",
        {},
        "the test data have x and y of shapes ([1, 4, 8], []), the train data ([1, 8, 8], []): make them alike",
    ),
    (
        "large",
        {},
        "the test data has labels from 5 to 7, where they are numbered from 0 to 2. Renumber "
        "them, or give data.classes.",
    ),
    (
        "holes",
        {"kwargs": {"value": float("nan")}, "task": "regression"},
        "the train data has nan in y; data.task=regression needs finite numbers. Correct it, or data.task.",
    ),
    (
        "datasets",
        {},
        "data.classes is not set, and a Dataset does not contain it. Give it, as data.classes=10.",
    ),
    ("none", {}, "data._target_=my_function.none cannot be built in"),
    ("pictures", {"classes": 2}, "train[0] holds a value that is neither a tensor nor a number"),
    (
        "tensors",
        {"kwargs": {"sise": 3}},
        "data._target_=my_function.tensors: got an unexpected keyword argument 'sise'. It takes size, shift.",
    ),
]


@pytest.mark.parametrize(
    ("name", "more", "message"), MISTAKES, ids=[f"{name} {more}" for name, more, _ in MISTAKES]
)
def test_mistakes_are_one_line(custom, name, more, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        custom(name, **more)
    assert "\n" not in str(caught.value)


def test_a_sample_unlike_the_others_is_named(custom):
    data = custom("ragged", classes=2)
    with pytest.raises(
        UserError,
        match=r"^data._target_: train\[7\] has x and y of shapes \(\[1, 8, 9\], \[\]\), the first",
    ):
        batch(data.train, 7)
    with pytest.raises(
        UserError,
        match=r"train\[2\] has labels from 2 to 2, where they are numbered from "
        r"0 to 1",
    ):
        batch(custom("datasets", classes=2).train, 2)


def test_a_function_that_makes_other_data_under_one_name_is_refused(custom, train, tmp_path):
    common = [
        "model=mlp",
        "data=custom",
        "data._target_=my_function.tensors",
        "data.batch_size=8",
        *FEW_STEPS,
    ]
    ran = train(*common)
    assert ran.code == 0, ran.err
    assert ran.record["data"]["name"] == ran.record["setting"]["data"] == "tensors"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{8}){2}", ran.record["data"]["contents"])
    assert "mlp-tensors-fp32-dense" in str(ran.folder)
    other = SOURCE.replace("shift=0", "shift=10").replace(
        "part(size), part(12), part(12)", "part(size), part(12), part(size)"
    )
    # of another size, for Python tells old bytecode by size and second
    (tmp_path / "my_function.py").write_text(other)
    sys.modules.pop("my_function")
    ran = train(*common, "seed=1")
    assert ran.code == 2
    assert ran.err.startswith("error: data.name=tensors: ")
    assert len(ran.folders) == 1
    ran = train(*common, "seed=1", "data.name=others")
    assert ran.code == 0
    assert "the test data are the train data: the results say nothing about new samples\n" in ran.out
