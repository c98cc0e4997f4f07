import os

import pytest
import torch

import mpx.data
from mpx.data import datamodule
from mpx.data.loaders import EvalLoader, TrainLoader
from mpx.data.readers import ResidentReader, WorkerReader
from mpx.errors import UserError

CPU = torch.device("cpu")


def take(loader, epoch):
    loader.set_epoch(epoch)
    return list(loader)


def same(a, b):
    return len(a) == len(b) and all(torch.equal(s, t) for p, q in zip(a, b, strict=True) for s, t in zip(p, q, strict=True))


@pytest.fixture(params=["digits", "text", "lm"])
def data(request, config):
    if request.param == "digits":
        return mpx.data.load(config("digits"))
    shape = {"kind": request.param, "shape": [12], "classes": 4, "vocab_size": 50, "samples": 640}
    return mpx.data.load(config("synthetic", **shape))


@pytest.mark.parametrize("workers", [0, 2])
def test_resident_and_worker_batches_are_equal(data, workers):
    count = len(data.train)
    reader = WorkerReader(data.train, 7, CPU, workers)
    a = TrainLoader(ResidentReader(data.train, 7, CPU), count, 64, seed=7)
    b = TrainLoader(reader, count, 64, seed=7)
    state = torch.get_rng_state()
    for epoch in (0, 1):
        assert same(take(a, epoch), take(b, epoch))
    assert torch.equal(state, torch.get_rng_state()), "a loader drew from the global generator"
    reader.close()


def test_epochs_and_seeds_differ_and_repeat(data):
    def loader(seed):
        return TrainLoader(ResidentReader(data.train, seed, CPU), len(data.train), 64, seed)

    first = take(loader(0), 1)
    assert same(first, take(loader(0), 1))
    assert not same(first, take(loader(0), 2))
    assert not same(first, take(loader(1), 1))


def test_augmentation_does_not_depend_on_batch_size_or_ranks(config):
    train = mpx.data.load(config("digits")).train

    def samples(batch_size, rank=0, world=1):
        loader = TrainLoader(ResidentReader(train, 0, CPU), 1280, batch_size, 0, rank, world)
        return {x.numpy().tobytes() for batch, _ in loader for x in batch}

    assert samples(64) == samples(32) == samples(64, 0, 2) | samples(64, 1, 2)


@pytest.mark.parametrize("make", ["resident", "workers"])
def test_evaluation_is_in_order_and_complete(data, make):
    reader = ResidentReader(data.test, 0, CPU) if make == "resident" else WorkerReader(data.test, 0, CPU, 0)
    loader = EvalLoader(reader, len(data.test), 50)
    batches = list(loader)
    assert len(batches) == len(loader) == -(-len(data.test) // 50)
    x = torch.cat([x for x, _ in batches])
    assert len(x) == len(data.test)
    index = torch.arange(len(data.test))
    plan = data.test.plan(0, 0)
    assert torch.equal(x, data.test.finish(*data.test.raw(index, plan), plan)[0])


@pytest.mark.parametrize("stop", [1, 7, 20])
def test_state_continues_at_the_next_batch(data, stop):
    def loader():
        return TrainLoader(ResidentReader(data.train, 0, CPU), len(data.train), 32, seed=0)

    whole, part = take(loader(), 3), loader()
    part.set_epoch(3)
    batches = iter(part)
    for _ in range(min(stop, len(part))):
        next(batches)
    again = loader()
    again.load_state_dict(part.state_dict())
    batches = iter(again)  # Lightning makes the iterator first and calls set_epoch with the same epoch then
    again.set_epoch(3)
    assert same(whole[stop:], list(batches))


def test_an_epoch_is_drawn_while_the_one_before_ends(data, monkeypatch):
    drawn, plan = [], type(data.train).plan
    monkeypatch.setattr(type(data.train), "plan", lambda split, seed, epoch: drawn.append(epoch) or plan(split, seed, epoch))

    def loader():
        return TrainLoader(ResidentReader(data.train, 0, CPU), len(data.train), 64, seed=0)

    going_on, batches = loader(), iter(one := loader())
    for _ in range(len(one) - 1):
        next(batches)
    assert drawn == [0]
    next(batches)  # the last one
    assert drawn == [0, 1]
    found = [take(going_on, epoch) for epoch in (0, 1, 4)]
    assert drawn[2:] == [0, 1, 2, 4, 5]
    assert all(same(batches, take(loader(), epoch)) for batches, epoch in zip(found, (0, 1, 4), strict=True))


def test_a_pass_that_was_left_early_starts_anew():
    loader = TrainLoader(Slow(), 40, 4, seed=0)
    next(iter(loader))
    assert len(list(loader)) == 10


def test_changed_order_is_refused_in_the_middle_of_an_epoch(config):
    data = mpx.data.load(config("digits"))
    reader = ResidentReader(data.train, 0, CPU)
    old = TrainLoader(reader, 1297, 64, seed=0)
    next(iter(old))
    with pytest.raises(UserError, match=r"^data\.batch_size is 32 but the checkpoint stopped in the middle of epoch 0 with 64: resume"):
        TrainLoader(reader, 1297, 32, seed=0).load_state_dict(old.state_dict())
    with pytest.raises(UserError, match="the number of devices is 2 but"):
        TrainLoader(reader, 1297, 64, 0, 1, 2).load_state_dict(old.state_dict())


@pytest.mark.parametrize("batch_size", [32, 128, 160])
def test_a_changed_order_is_judged_by_the_epoch_of_the_checkpoint(batch_size):
    """After 10 of its 20 batches. With batches twice as large an epoch has 10, which is not the end of that one."""
    old, new = (TrainLoader(Slow(), 1297, size, seed=0) for size in (64, batch_size))
    batches = iter(old)
    for _ in range(10):
        next(batches)
    with pytest.raises(UserError, match=r"in the middle of epoch 0 with 64: resume with 64, or from a checkpoint at an epoch's end"):
        new.load_state_dict(old.state_dict())
    assert len(list(batches)) == 10
    new.load_state_dict(old.state_dict())
    new.set_epoch(1)
    assert len(list(new)) == 1297 // batch_size


class Slow:
    """A reader that takes 2 s for each batch, by a clock that only it and the test move."""

    def __init__(self):
        self.now = 0

    def batches(self, epoch, indices):
        for index in indices:
            self.now += 2
            yield index, index


def test_a_wait_is_the_time_inside_next_only():
    reader = Slow()
    loader = TrainLoader(reader, 40, 8, seed=0)
    assert len(list(loader)) == 5
    assert loader.take_waits() == []  # nobody measures, so nothing is kept
    reader.now = 0
    loader.time_waits(lambda: reader.now)
    for _ in loader:
        reader.now += 5
    assert loader.take_waits() == [(0, 2), (7, 9), (14, 16), (21, 23), (28, 30)]
    assert loader.take_waits() == []


def test_drawing_the_next_epoch_ahead_counts_as_waiting():
    class SlowToDraw(Slow):
        def batches(self, epoch, indices):
            self.now += 100
            return super().batches(epoch, indices)

    reader = SlowToDraw()
    loader = TrainLoader(reader, 16, 8, seed=0)
    loader.time_waits(lambda: reader.now)
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert len(list(loader)) == 2
    assert loader.take_waits() == [(0, 102), (102, 204), (204, 206), (206, 308)]


def test_a_batch_that_the_devices_cannot_fill():
    with pytest.raises(UserError, match=r"^data\.batch_size=700 on 2 devices needs 1400 train samples but there are 1297: lower .* 648"):
        TrainLoader(None, 1297, 700, 0, 0, 2)


def test_choice_of_the_loader(monkeypatch):
    cuda, mib = torch.device("cuda"), 2**20
    assert datamodule.choose_loader("auto", 10**12, CPU) == ("resident", "in memory as they are")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 * mib, 2000 * mib))
    assert datamodule.choose_loader("auto", 249 * mib, cuda) == ("resident", "249 MiB, less than 1/4 of 1,000 MiB that are free")
    assert datamodule.choose_loader("auto", 250 * mib, cuda) == ("workers", "250 MiB, not less than 1/4 of 1,000 MiB that are free")
    assert datamodule.choose_loader("resident", 250 * mib, cuda) == ("resident", "data.loader=resident")
    assert datamodule.choose_loader("auto", None, CPU) == ("workers", "files are read one by one")


def test_an_epochs_order_is_drawn_by_one_thread(config, monkeypatch):
    """With more it would wait for the slowest; training has all of them."""
    split, threads = mpx.data.load(config("digits")).train, []
    plan = type(split).plan
    monkeypatch.setattr(type(split), "plan", lambda *given: threads.append(torch.get_num_threads()) or plan(*given))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        next(iter(ResidentReader(split, 0, CPU).batches(0, [torch.arange(4)])))
        assert (threads, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_auto_workers_is_at_most_eight(config):
    train = mpx.data.load(config("digits")).train
    assert WorkerReader(train, 0, CPU, "auto").loader.num_workers == min(8, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "digit", r"^data\.name=digit must be one of digits, mnist, .*synthetic; or give data\.family\. Did you mean digits\?$"),
        ("loader", "fast", r"^data\.loader=fast must be one of auto, resident, workers"),
        ("workers", "many", r"^data\.workers=many must be a whole number of at least 0, or auto"),
        ("workers", -1, r"^data\.workers=-1 "),
        ("batch_size", 0, r"^data\.batch_size=0 must be a whole number of at least 1"),
        ("batch_size", 1.5, r"^data\.batch_size=1\.5 "),
        ("eval_batch_size", None, r"^data\.eval_batch_size=null "),
        ("augment", "flip", r"^data\.augment=flip must be one of none, crop, crop_flip"),
        ("pad", -1, r"^data\.pad=-1 must be a whole number of at least 0 and at most 64"),
        ("crop", 0, r"^data\.crop=0 must be a whole number of at least 1 and at most 4096, or null"),
        ("crop", 11, r"^data\.crop=11 must be at most 10, the image's side with data\.pad=1 on both sides"),
        ("mean", [0.1, 0.2], r"^data\.mean=\[0\.1, 0\.2\] does not fit images of 1 channels\. Give a list of 1 numbers"),
        ("std", [0.0], r"^data\.std=\[0\.0\] must be a list of at least 1, each a number above 0"),
        ("image_size", 0, r"^data\.image_size=0 must be a whole number of at least 1 and at most 4096, or null"),
    ],
)
def test_wrong_settings(config, field, value, message):
    cfg = config("digits")
    cfg[field] = value
    with pytest.raises(UserError, match=message) as caught:
        mpx.data.load(cfg)
    assert "\n" not in str(caught.value)


def test_plain_mappings_and_namespaces_are_accepted(config):
    from types import SimpleNamespace

    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config("digits"))
    assert mpx.data.load(plain).sizes == mpx.data.load(SimpleNamespace(**plain)).sizes


def test_a_folder_may_be_a_path(config, tmp_path):
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config("mnist"), resolve=True)
    with pytest.raises(UserError, match=r"^data\.root=.* is not there"):
        mpx.data.load(plain | {"root": tmp_path / "none", "download": False})
