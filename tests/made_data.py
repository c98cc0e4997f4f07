"""Files in every publisher's layout, made on the spot: right in form and size, with nothing to learn in
them.
"""

import json
import pickle
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
    )


def mnist(root: Path, name: str) -> None:
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.broadcast_to((labels * 20)[:, None, None], (count, 28, 28)).astype(np.uint8)
        idx(root / name / "raw" / f"{part}-images-idx3-ubyte", images)
        idx(root / name / "raw" / f"{part}-labels-idx1-ubyte", labels)


def cifar10(root: Path) -> None:
    (root / "cifar-10-batches-py").mkdir(parents=True)
    labels = [i % 10 for i in range(10_000)]
    pixels = np.repeat(np.array(labels, dtype=np.uint8)[:, None] * 20, 3072, axis=1)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (root / "cifar-10-batches-py" / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}))


def sst2(root: Path) -> None:
    (root / "sst2").mkdir(parents=True)
    rows = [f"a {'fine' if i % 2 else 'dull'} film number {i}\t{i % 2}\n" for i in range(300)]
    for name in ("train.tsv", "dev.tsv", "test_labelled_glue_style.tsv"):
        (root / "sst2" / name).write_text("sentence\tlabel\n" + "".join(rows))


def wikitext2(root: Path) -> None:
    (root / "wikitext-2").mkdir(parents=True)
    words = " ".join(f"w{i}" for i in range(33_277))
    for part in ("train", "valid", "test"):
        (root / "wikitext-2" / f"wiki.{part}.tokens").write_text(words + "\n")


def text_csv(path: Path) -> None:
    path.write_text(
        "text,label\n"
        + "".join(
            f"a {'good' if i % 2 else 'bad'} thing {i},{'yes' if i % 2 else 'no'}\n" for i in range(200)
        )
    )


def text_jsonl(path: Path) -> None:
    path.write_text(
        "".join(
            json.dumps({"text": f"a {'good' if i % 2 else 'bad'} thing {i}", "label": i % 2}) + "\n"
            for i in range(200)
        )
    )


def text_file(path: Path) -> None:
    path.write_text("to be or not to be, that is the question. " * 600)


def image_folder(path: Path) -> None:
    for split, count in (("train", 40), ("val", 6)):
        for label in ("cat", "dog"):
            folder = path / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(np.full((40, 48, 3), 100 * (label == "dog") + i, dtype=np.uint8)).save(
                    folder / f"{i}.png"
                )


def everything(root: Path) -> Path:
    mnist(root, "MNIST")
    mnist(root, "FashionMNIST")
    cifar10(root)
    sst2(root)
    wikitext2(root)
    text_csv(root / "reviews.csv")
    text_jsonl(root / "reviews.jsonl")
    text_file(root / "text.txt")
    image_folder(root / "images")
    return root
