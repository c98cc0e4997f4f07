"""experiments/served: the page on serving says what its rows say."""

import csv

from documents import ROOT, text
from experiment import EXPERIMENTS

# device: behind the name of a model in the card
CARDS = {"NVIDIA H100 80GB HBM3": "", "NVIDIA H200": ", H200"}


def rates():
    """Samples per second by device, model, and format with plan, or rival: the best of compiled and
    graphed.
    """
    found = {device: {} for device in CARDS}
    with open(EXPERIMENTS / "served" / "speed.csv", newline="") as file:
        for row in csv.DictReader(file):
            backend, _, plan = row["candidate"].partition(", ")
            name = (
                f"{row['format']} {plan or 'own kernels'}"
                if backend in ("graph", "compile")
                else row["candidate"]
            )
            of_model = found[row["device"]].setdefault(row["model"], {})
            of_model[name] = max(float(row["samples_per_s"]), of_model.get(name, 0))
    return found


def test_what_the_page_says_of_speed_is_what_the_rows_say():
    page = " ".join(text(ROOT / "docs" / "deploy.md").split())
    gains = {}
    for device, of_models in rates().items():
        for model, found in of_models.items():
            plans = ("bf16 fastest kernels", "int8 fastest kernels", "fp8 dense kernels")
            gains[device, model] = [
                f"{found[plan] / found['bf16 own kernels']:.2f}" for plan in plans if plan in found
            ]
    h100, h200 = CARDS
    large, base, small = (gains[h100, f"bert_{size}"] for size in ("large", "base", "small"))
    assert (
        f"mpx serves BERT-large {large[0]} (BF16) and {large[1]} (INT8) times as fast as dense in BF16"
        in page
    )
    assert (
        f"BERT-base {base[0]} and {base[1]} times, and BERT-small {small[0]} and {small[1]} times, on an H100"
    ) in page
    large_there, base_there = gains[h200, "bert_large"], gains[h200, "bert_base"]
    assert (
        f"on an H200 it was {' and '.join(large_there[:2])} times for BERT-large, "
        f"{' and '.join(base_there[:2])} for BERT-base"
    ) in page
    assert f"dense FP8 is faster than with 2:4 in BF16 ({large[2]} times dense BF16)" in page
    assert large[0] < large[2] < large[1]
