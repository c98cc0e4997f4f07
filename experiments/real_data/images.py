"""How fast does ResNet-50 train from JPEG files, and ResNet-18 on CIFAR-10 as a whole, beside loops by hand?

$ python experiments/real_data/images.py --seconds 300    # begins no contender after so many
$ python experiments/real_data/images.py --parts jpegs    # or cifar10
$ python experiments/real_data/images.py --tiny           # a minute on a CPU: whether all of it runs
$ python experiments/real_data/images.py --card           # README.md from the committed images.csv

Makes the JPEGs. CIFAR-10 is in the folder MPX_DATA; its part is left out without. Writes images.csv into $OUT, or
here. Every contender is a process of its own, so that its time has all of it: imports, compiling, training, test.
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool, get_context, set_start_method
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
sys.path.append(str(HERE.parent / "speed"))
from collecting import ONLY_STEPS, Arguments, experiment, markdown, said, some_of, train  # noqa: E402

CLASSES = 10
COLUMNS = ("part", "contender", "samples_per_s", "wall_s", "steps", "waiting", "accuracy", "note")
PARTS = ("jpegs", "cifar10")
# of conf/tuned/resnet18_cifar10.yaml
LR, EPOCHS, PAD, CROP, CUTOUT, SMOOTHING, WARMUP_SHARE = 0.4, 40, 2, 28, 8, 0.1, 0.05


@dataclass(frozen=True)
class Size:
    model: str
    images: int  # JPEGs to train on
    height: int  # of a JPEG
    width: int
    side: int  # of the crop
    batch: int
    warmup: int  # steps: an epoch at least, in which a resident set is decoded
    steps: int  # that are timed


FULL = Size("resnet50", 10_000, 375, 500, 224, 256, 45, 40)
TINY = Size("resnet18", 64, 48, 64, 32, 8, 9, 4)


def make(folder: Path, size: Size) -> None:
    """<folder>/{train,val,test}/<class>/: smooth noise in a colour of the class, as large in files as photographs."""
    jobs = []
    for split, count in (("train", size.images), ("val", 2 * size.batch), ("test", 2 * size.batch)):
        for label in range(CLASSES):
            (folder / split / str(label)).mkdir(parents=True)
        jobs += [(len(jobs) + i, i % CLASSES, folder / split, size) for i in range(count)]
    with Pool() as pool:
        pool.starmap(make_one, jobs, chunksize=16)


def make_one(seed: int, label: int, split: Path, size: Size) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 200, (9, 12, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((size.width, size.height), Image.Resampling.BICUBIC)).astype(np.float32)
    pixels[:, :, label % 3] += 5 * label
    pixels += random.normal(0, 12, pixels.shape)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.save(split / str(label) / f"{seed}.jpg", quality=90)


# The contenders. Each returns its rows.


def mpx(size: Size, tiny: bool, words: Sequence[str]) -> list[dict]:
    """A run of few steps on images of the size."""
    # not compiled, unlike the loops by hand: five runs would take half a minute each to compile
    fast = "trainer.cuda_graphs=true trainer.compile=off trainer.benchmark=true"
    few = (
        f"model={size.model} data.batch_size={size.batch} trainer.max_steps={size.warmup + size.steps} "
        f"trainer.warmup_steps={size.warmup} {'' if tiny else fast}"
    )
    return recorded_run([*few.split(), *ONLY_STEPS, *words])


def from_files(loader: str, folder: Path, size: Size, tiny: bool) -> list[dict]:
    words = f"data=image_folder data.path={folder} data.image_size={size.side} data.loader={loader}"
    return mpx(size, tiny, words.split())


def synthetic(folder: Path, size: Size, tiny: bool) -> list[dict]:
    """The ceiling: images that lie on the device."""
    words = f"data=synthetic data.shape=[3,{size.side},{size.side}] data.classes={CLASSES} data.samples={size.batch * 8}"
    return mpx(size, tiny, words.split())


def cifar10(folder: Path, size: Size, tiny: bool) -> list[dict]:
    few = "trainer.max_epochs=2 trainer.limit_train_batches=12 trainer.limit_val_batches=1 trainer.limit_test_batches=1"
    few += " data.batch_size=16 data.eval_batch_size=16"
    return recorded_run(["task=resnet18_cifar10", *(few.split() if tiny else [])])


def recorded_run(words: Sequence[str]) -> list[dict]:
    record = train([*words, "precision=amp_bf16"])
    speed = record["speed"]
    chosen = speed["chosen"]
    row = {"samples_per_s": speed["train_samples_per_s"], "steps": record["precision"]["optimizer_steps"]}
    row |= {"waiting": speed["data_wait_fraction"], "accuracy": record["metrics"].get("test/accuracy")}
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in speed["time_to_train_parts_s"].items())
    note = f"{chosen['loader']}: {chosen['why']['loader']}; compile {chosen['compile']}; {parts}"
    return [row | {"note": note}]


def alone(folder: Path, size: Size, tiny: bool) -> list[dict]:
    """mpx's loaders without a training, and the parts of decoding on the device."""
    import torch
    from hand import synchronize
    from omegaconf import OmegaConf
    from setups import device

    from mpx.data import load, readers
    from mpx.data.decoding import decode_on
    from mpx.data.decoding import read as read_file
    from mpx.train import CONF

    given = {"path": str(folder), "image_size": size.side, "batch_size": size.batch}
    split = load(OmegaConf.merge(OmegaConf.load(CONF / "data" / "image_folder.yaml"), given)).train
    readers.MEASURED_BATCH = size.batch
    order = torch.randperm(len(split)).repeat(20)
    rates = {
        f"loader={loader} alone": readers.images_per_s(
            readers.reader_of(loader, split, 0, device(), "auto"), order
        )
        for loader in ("workers", "device", "resident")
    }
    index, plan = order[: size.batch], split.plan(0, 0)
    paths = [split.paths[i] for i in index.tolist()]
    contents = [read_file(path) for path in paths]
    images = decode_on(device(), paths, contents)
    parts: dict[str, Callable] = {
        "reading alone": lambda: [read_file(path) for path in paths],
        "decoding alone": lambda: decode_on(device(), paths, contents),
        "cropping alone": lambda: split.crop(images, plan[index]),
    }
    for name, part in parts.items():
        part()
        synchronize()
        began = time.perf_counter()
        for _ in range(5):
            part()
        synchronize()
        rates[name] = 5 * size.batch / (time.perf_counter() - began)
    return [{"contender": name, "samples_per_s": rate} for name, rate in rates.items()]


def torchvision_batches(folder: Path, size: Size) -> Iterator:
    """Bytes go to the device, and are normalised there."""
    import torch
    from setups import device
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(size.side, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    loader = DataLoader(
        ImageFolder(str(folder / "train"), v2.Compose(steps)), size.batch, shuffle=True, drop_last=True,
        num_workers=workers(), pin_memory=device().type == "cuda", persistent_workers=True,
    )  # fmt: skip
    centre, spread = (
        255 * torch.tensor(values, device=device())[:, None, None]
        for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    while True:
        for x, y in loader:
            x, y = (part.to(device(), non_blocking=True) for part in (x, y))
            yield (x.float() - centre) / spread, y


def timm_batches(folder: Path, size: Size) -> Iterator:
    """As its train script makes them, with the prefetcher; without its jitter of colours, which the others lack."""
    from setups import device
    from timm.data import create_dataset, create_loader

    loader = create_loader(
        create_dataset("", root=str(folder / "train")), (3, size.side, size.side), size.batch, is_training=True,
        color_jitter=0.0, num_workers=workers(), pin_memory=device().type == "cuda", device=device(),
        persistent_workers=True,
    )  # fmt: skip
    while True:
        yield from loader


def workers() -> int:
    return len(os.sched_getaffinity(0))


def loop(batches: Callable[[Path, Size], Iterator], folder: Path, size: Size, tiny: bool) -> list[dict]:
    """Compiled, channels_last, BF16."""
    from hand import searching, synchronize, training
    from setups import Setup

    setup = Setup(size.model, "amp_bf16", [3, size.side, size.side], CLASSES, size.batch, 0, size.steps)
    step, stream = training(setup, tuned=True)[-1], batches(folder, size)
    with searching(setup):
        for number, batch in zip(range(size.warmup + size.steps), stream, strict=False):
            step(*batch)
            if number == size.warmup - 1:
                synchronize()
                began = time.perf_counter()
        synchronize()
    rate = size.steps * size.batch / (time.perf_counter() - began)
    return [{"samples_per_s": rate, "steps": size.warmup + size.steps}]


def cifar10_by_hand(compiled: bool, folder: Path, size: Size, tiny: bool) -> list[dict]:
    """All images stay on the device, which augments an epoch at once; the step is one CUDA graph. Augmentation,
    schedule and epochs are those of mpx's task.
    """
    import torch
    from hand import build, recorded, searching, synchronize
    from omegaconf import OmegaConf
    from setups import Setup, device
    from torch.nn.functional import cross_entropy

    from mpx.data import load
    from mpx.data.augment import crop_flip, cut_out, normalise
    from mpx.train import CONF
    from mpx.training.module import averaged

    torch.manual_seed(0)
    given = {"val_size": 1000, "batch_size": 256, "download": False}
    data = load(OmegaConf.merge(OmegaConf.load(CONF / "data" / "cifar10.yaml"), given))
    train, held_out, test = (part.to(device()) for part in (data.train, data.val, data.test))
    setup = Setup("resnet18", "amp_bf16", [3, CROP, CROP], 10, 16 if tiny else 256, 0, 0)
    model = build(setup).to(device(), memory_format=torch.channels_last)
    epochs, in_epoch = (2, 12) if tiny else (EPOCHS, len(train) // setup.batch)
    total, rate = epochs * in_epoch, torch.zeros((), device=device())
    ahead = math.ceil(WARMUP_SHARE * total)
    rates = [
        LR * ((i + 1) / ahead if i < ahead else (1 + math.cos(math.pi * (i - ahead) / (total - ahead))) / 2)
        for i in range(total)
    ]
    rates = torch.tensor(rates, device=device())
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() >= 2) is matrix], "weight_decay": decay}
        for matrix, decay in ((True, 5e-4), (False, 0.0))
    ]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=0.9, nesterov=True, fused=True)
    for group in optimizer.param_groups:
        group["lr"] = rate  # written in place, where the graph finds it

    def loss_of(x, y):
        return cross_entropy(model(x).float(), y, label_smoothing=SMOOTHING)

    run = torch.compile(loss_of) if compiled and device().type == "cuda" else loss_of

    def train_on(x, y):
        with torch.autocast(device().type, torch.bfloat16):
            loss = run(x.to(memory_format=torch.channels_last), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def epoch_of(mirrored):
        order = torch.randperm(len(train), device=device())[: in_epoch * setup.batch]
        corners = torch.randint(0, 32 + 2 * PAD - CROP + 1, (len(order), 2), device=device())
        x = crop_flip(train.images[order], torch.cat([corners, mirrored[order, None]], 1), PAD, CROP)
        x = normalise(x, 255, train.mean, train.std)
        x = cut_out(x, torch.randint(0, CROP, (len(order), 2), device=device()), CUTOUT)
        return zip(x.split(setup.batch), train.labels[order].split(setup.batch), strict=True)

    @torch.no_grad()
    def accuracy(split, kind):
        model.eval()
        right = []
        with torch.autocast(device().type, torch.bfloat16):
            for index in torch.arange(16 if tiny else len(split), device=device()).split(1000):
                x, y = split.finish(*split.raw(index, None), None)
                x = x.to(memory_format=torch.channels_last)
                right.append((averaged(model, x, kind).argmax(-1) == y).float())
        model.train()
        return torch.cat(right).mean().item()

    mirrored = torch.randint(0, 2, (len(train),), device=device())
    with searching(setup):
        step = recorded(train_on, next(iter(epoch_of(mirrored))))
        taken = []
        for epoch in range(epochs):
            synchronize()
            began = time.perf_counter()
            for number, batch in enumerate(epoch_of(mirrored ^ (epoch % 2))):
                rate.copy_(rates[epoch * in_epoch + number])
                step(*batch)
            synchronize()
            taken.append(time.perf_counter() - began)
            print(f"epoch {epoch}: {accuracy(held_out, 'none'):.4f}", file=sys.stderr)
        found = accuracy(test, "flip_shift")
    speed = setup.batch * in_epoch / mean(taken[1:])
    return [{"samples_per_s": speed, "steps": total, "accuracy": found}]


def apart(contender: Callable[..., list[dict]], *arguments: object) -> list[dict]:
    """Its rows, of a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), forking) as pool:
        return pool.submit(contender, *arguments).result()


def forking() -> None:
    """Loaders fork their workers, as in a script of its own: a spawned process spawns, and each worker would import
    PyTorch first.
    """
    set_start_method("fork", force=True)


CONTENDERS: dict[tuple[str, str], Callable[[Path, Size, bool], list[dict]]] = {
    ("jpegs", "mpx's loaders"): partial(apart, alone),
    ("jpegs", "mpx, synthetic"): synthetic,
    ("jpegs", "mpx, loader=device"): partial(from_files, "device"),
    ("jpegs", "mpx, loader=resident"): partial(from_files, "resident"),
    ("jpegs", "mpx, loader=workers"): partial(from_files, "workers"),
    ("jpegs", "torchvision's DataLoader"): partial(apart, loop, torchvision_batches),
    ("jpegs", "timm's loader"): partial(apart, loop, timm_batches),
    ("jpegs", "mpx, loader=auto"): partial(from_files, "auto"),
    ("cifar10", "mpx"): cifar10,
    ("cifar10", "by hand"): partial(apart, cifar10_by_hand, False),
    ("cifar10", "by hand, compiled"): partial(apart, cifar10_by_hand, True),
}


def measure(given: argparse.Namespace) -> Iterator[dict]:
    size, ends = TINY if given.tiny else FULL, time.perf_counter() + given.seconds
    parts = set(given.parts)
    if not (Path(os.environ.get("MPX_DATA", "data")) / "cifar-10-batches-py").is_dir():
        parts.discard("cifar10")
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path) / "jpegs"
        if "jpegs" in parts:
            began = time.perf_counter()
            make(folder, size)
            sizes = [file.stat().st_size for file in folder.rglob("*.jpg")]
            seconds = time.perf_counter() - began
            print(f"{len(sizes):,} JPEGs of {mean(sizes) / 1e3:.0f} kB: {seconds:.0f} s", flush=True)
        wanted = (key for key in CONTENDERS if key[0] in parts and key[1] in given.contenders)
        for part, contender in wanted:
            began = time.perf_counter()
            try:
                if began > ends:
                    raise RuntimeError("no time left")
                rows = CONTENDERS[part, contender](folder, size, given.tiny)
            except Exception as error:  # the others are still wanted
                rows = [{"note": f"{type(error).__name__}: {error}"}]
            wall = time.perf_counter() - began
            for row in rows:
                yield {"part": part, "contender": contender, "wall_s": wall} | row


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    """The tables of the card."""
    heads = ["", "images/s", "share of the step that waits", "s, whole process", "accuracy"]

    def cell(value: str, form: str) -> str:
        return format(float(value), form) if value else ""

    found = {}
    for part in PARTS:
        of_part = [row for row in rows if row["part"] == part and row["samples_per_s"]]
        lines = [
            [row["contender"], cell(row["samples_per_s"], ",.0f"), cell(row["waiting"], ".0%"),
             cell(row["wall_s"], ",.0f"), cell(row["accuracy"], ".4f") if part == "cifar10" else ""]
            for row in of_part
        ]  # fmt: skip
        if lines:
            found[part] = f"{said(of_part, '{device} of {host}, torch {torch}')}.\n\n{markdown(heads, lines)}"
    return found


if __name__ == "__main__":
    parser = Arguments()
    parser.add_argument("--seconds", type=float, default=3600, help="begin no contender after so many")
    parser.add_argument("--parts", type=some_of(PARTS), default=list(PARTS))
    names = list(dict.fromkeys(name for _, name in CONTENDERS))
    parser.add_argument("--contenders", type=some_of(names, ";"), default=names, help=";".join(names))
    parser.add_argument("--tiny", action="store_true", help="small images and few steps")
    experiment(HERE, COLUMNS, measure, card, parser=parser, file="images.csv")
