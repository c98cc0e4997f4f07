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
    return len(a) == len(b) and all(
        torch.equal(s, t) for p, q in zip(a, b, strict=True) for s, t in zip(p, q, strict=True)
    )


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


def test_a_checkpoint_at_an_epochs_end_leaves_the_next_epoch_whole(data):
    def loader():
        return TrainLoader(ResidentReader(data.train, 0, CPU), len(data.train), 32, seed=0)

    trained = loader()
    take(trained, 3)
    again = loader()
    again.load_state_dict(trained.state_dict())
    assert same(take(loader(), 4), take(again, 4))


def test_an_epoch_is_drawn_while_the_one_before_ends(data, monkeypatch):
    drawn, plan = [], type(data.train).plan
    monkeypatch.setattr(
        type(data.train), "plan", lambda split, seed, epoch: drawn.append(epoch) or plan(split, seed, epoch)
    )

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


def test_changed_order_is_refused_in_the_middle_of_an_epoch(config):
    data = mpx.data.load(config("digits"))
    reader = ResidentReader(data.train, 0, CPU)
    old = TrainLoader(reader, 1297, 64, seed=0)
    next(iter(old))
    with pytest.raises(
        UserError,
        match=r"^data\.batch_size is 32 but the checkpoint stopped in the middle "
        r"of epoch 0 with 64: resume",
    ):
        TrainLoader(reader, 1297, 32, seed=0).load_state_dict(old.state_dict())
    with pytest.raises(UserError, match="the number of devices is 2 but"):
        TrainLoader(reader, 1297, 64, 0, 1, 2).load_state_dict(old.state_dict())


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


def test_a_batch_that_the_devices_cannot_fill():
    with pytest.raises(
        UserError,
        match=r"^data\.batch_size=700 on 2 devices needs 1400 train samples but "
        r"there are 1297: lower .* 648",
    ):
        TrainLoader(None, 1297, 700, 0, 0, 2)


class Split:
    """What a loader is chosen by."""

    def __init__(self, nbytes, on_disk=False):
        self.nbytes, self.on_disk = nbytes, on_disk

    def __len__(self):
        return 100


def test_choice_of_the_loader(monkeypatch):
    cuda, mib = torch.device("cuda"), 2**20

    def chosen(wanted, train, device):
        return datamodule.choose_loader(wanted, [train, Split(mib), Split(None)], device, "auto")

    assert chosen("auto", Split(10**12), CPU) == ("resident", "in memory as they are")
    assert chosen("auto", Split(10**3, on_disk=True), CPU) == ("workers", "images in files")
    assert chosen("auto", Split(None), CPU) == ("workers", "samples are made one by one")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 * mib, 2000 * mib))
    for on_disk in (False, True):
        assert chosen("auto", Split(248 * mib, on_disk), cuda) == (
            "resident",
            "249 MiB, less than 1/4 of 1,000 MiB that are free",
        )
    assert chosen("auto", Split(249 * mib), cuda) == (
        "workers",
        "250 MiB, not less than 1/4 of 1,000 MiB that are free",
    )
    assert chosen("resident", Split(250 * mib), cuda) == ("resident", "data.loader=resident")


@pytest.mark.parametrize(("rates", "faster"), [((3900, 9800), "device"), ((3900, 2000), "workers")])
def test_the_faster_of_two_loaders_is_chosen(monkeypatch, rates, faster):
    found = dict(zip(("workers", "device"), rates, strict=True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 1))
    monkeypatch.setattr(datamodule, "reader_of", lambda loader, *_: loader)
    monkeypatch.setattr(datamodule, "images_per_s", lambda reader, order: found[reader])
    chosen = datamodule.choose_loader("auto", [Split(10**9, on_disk=True)], torch.device("cuda"), "auto")
    assert chosen == (faster, f"images/s: workers 3,900, device {found['device']:,}")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("loader", "device", r"^data\.loader=device decodes images, which data=digits has not\. Use data\."),
        (
            "name",
            "digit",
            r"^data\.name=digit must be one of digits, mnist, .*synthetic; or give "
            r"data\.family\. Did you mean digits\?$",
        ),
        ("crop", 11, r"^data\.crop=11 must be at most 10, the image's side with data\.pad=1 on both sides"),
        (
            "mean",
            [0.1, 0.2],
            r"^data\.mean=\[0\.1, 0\.2\] does not fit images of 1 channels\. Give a list "
            r"of 1 numbers",
        ),
    ],
)
def test_wrong_settings(config, field, value, message):
    cfg = config("digits")
    cfg[field] = value
    with pytest.raises(UserError, match=message) as caught:
        mpx.data.load(cfg)
    assert "\n" not in str(caught.value)
