"""Every file in conf/data gives batches as its Spec says, on small stand-ins for the files."""

from pathlib import Path

import pytest
import torch
from made_data import text_jsonl
from PIL import Image

import mpx.data
from mpx.data.datamodule import choose_loader
from mpx.data.loaders import EvalLoader, TrainLoader
from mpx.data.readers import ResidentReader, reader_of
from mpx.errors import UserError
from mpx.settings.data import IMAGES, family
from mpx.settings.fields import FIELDS

CONF = Path(__file__).parents[2] / "conf" / "data"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml"))
CPU = torch.device("cpu")


@pytest.fixture
def prepared(config, real, request, session_cache, tmp_path):
    """A configuration of a choice with the least changes that make it loadable here."""

    def make(name):
        if name in ("mnist", "fashion_mnist"):
            return config(
                name, root=str(real({"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name]).parent)
            )
        if name == "cifar10":
            return config(name, root=str(request.getfixturevalue("cifar_root")))
        if name == "sst2":
            return config(name, root=str(real("sst2").parent), vocab_size=2000, cache=session_cache)
        if name == "wikitext2":
            return config(name, root=str(real("wikitext-2").parent))
        if name == "text_file":
            return config(name, path=str(real("tinyshakespeare") / "input.txt"))
        if name == "text_csv":
            return config(name, path=str(real("sst2") / "dev.tsv"), text_column="sentence", vocab_size=500)
        if name == "huggingface":
            pytest.importorskip("datasets", reason="the extra mpx[data] is not installed")
            text_jsonl(tmp_path / "reviews.jsonl")
            return config(name, path=str(tmp_path / "reviews.jsonl"), vocab_size=300)
        if name == "custom":
            return config(name, _target_="own_data.make_data")
        if name == "image_folder":
            for folder in ("train/a", "train/b", "val/a", "val/b"):
                (tmp_path / "images" / folder).mkdir(parents=True)
                for i in range(3):
                    Image.new("L", (30, 40), i * 100).save(tmp_path / "images" / folder / f"{i}.png")
            return config(name, path=str(tmp_path / "images"), batch_size=4, workers=0)
        return config(name, **({"samples": 64} if name == "synthetic" else {}))

    return make


def check(batch, spec, count):
    x, y = batch
    if spec.kind == "image":
        assert x.dtype == torch.float32
        assert tuple(x.shape) == (count, *spec.shape)
        assert abs(float(x.mean())) < 2.5  # normalised
    else:
        assert x.dtype == torch.int64
        assert tuple(x.shape) == (count, *spec.shape)
        assert int(x.min()) >= 0
        assert int(x.max()) < spec.vocab_size
    assert y.dtype == torch.int64
    assert tuple(y.shape) == ((count, *spec.shape) if spec.kind == "lm" else (count,))
    assert int(y.min()) >= 0
    assert int(y.max()) < spec.classes
    assert spec.kind != "lm" or torch.equal(x[:, 1:], y[:, :-1])


@pytest.mark.parametrize("name", CHOICES)
def test_batches_are_as_the_spec_says(prepared, name):
    cfg = prepared(name)
    data = mpx.data.load(cfg)
    assert family(cfg) == name
    assert cfg.kind == data.spec.kind

    def reader(split):
        return reader_of(choose_loader(cfg.loader, [data.train], CPU, 0)[0], split, 0, CPU, cfg.workers)

    train = TrainLoader(reader(data.train), len(data.train), cfg.batch_size, seed=0)
    check(next(iter(train)), data.spec, cfg.batch_size)
    for split in (data.val, data.test):
        loader = EvalLoader(reader(split), len(split), cfg.eval_batch_size)
        check(next(iter(loader)), data.spec, min(cfg.eval_batch_size, len(split)))


def test_choices_are_the_sets_that_load_knows():
    assert set(mpx.data.SETS) == set(CHOICES)
    assert all(FIELDS["data.name"].fits(name) for name in CHOICES)


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_the_settings_know_each_set_of_images(prepared, name):
    data = mpx.data.load(prepared(name))
    assert IMAGES[name] == data.spec.shape[:2]


@pytest.mark.parametrize("kind", ["image", "text", "lm"])
def test_synthetic_of_any_shape(config, kind):
    shape = [2, 5, 7] if kind == "image" else [9]
    cfg = config("synthetic", kind=kind, shape=shape, classes=3, vocab_size=20, samples=100)
    first, second = mpx.data.load(cfg), mpx.data.load(cfg)
    assert first.sizes == {"train": 100, "val": 12, "test": 12}
    check(next(iter(TrainLoader(ResidentReader(first.train, 0, CPU), 100, 10, 0))), first.spec, 10)
    a, b = (
        data.train.stream if kind == "lm" else data.train.raw(torch.arange(100), None)[0]
        for data in (first, second)
    )
    assert torch.equal(a, b)


def test_synthetic_labels_can_be_told_from_the_sample(config):
    image = mpx.data.load(config("synthetic", shape=[1, 8, 8], classes=4, samples=200)).train
    brightness = image.images.float().mean((1, 2, 3))
    assert all(
        brightness[image.labels == c].max() < brightness[image.labels == c + 1].min() for c in range(3)
    )
    text = mpx.data.load(
        config("synthetic", kind="text", shape=[64], classes=4, vocab_size=50, samples=200)
    ).train
    marks = torch.stack([(text.ids == c + 1).sum(1) for c in range(4)], dim=1)
    assert torch.equal(marks.argmax(1), text.labels)
    stream = mpx.data.load(
        config("synthetic", kind="lm", shape=[64], vocab_size=50, samples=200)
    ).train.stream
    assert ((stream[:-1] + 1) % 50 == stream[1:]).float().mean() > 0.95


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"shape": [8, 8]},
            r"^data\.shape=\[8, 8\] does not fit data\.kind=image: give \[channels, "
            r"height, width\]",
        ),
        ({"kind": "text", "shape": [8], "vocab_size": 1001}, r"^data\.vocab_size=1001 must be at least 1002"),
    ],
)
def test_synthetic_errors(config, overrides, message):
    with pytest.raises(UserError, match=message):
        mpx.data.load(config("synthetic", **overrides))
