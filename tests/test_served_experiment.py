"""experiments/served: the table of accuracy says what its rows say."""

import csv

from documents import ROOT, text
from experiment import EXPERIMENTS, script


def row(recipe, fmt, seed, accuracy, **others):
    found = dict.fromkeys(("kept", "samples_per_s", "sparse_layers", "reason"), "")
    found |= {
        "task": "net_set",
        "recipe": recipe,
        "format": fmt,
        "seed": str(seed),
        "accuracy": str(accuracy),
    }
    return found | {"batch": "256", "device": "a GPU", "torch": "2.11", "epochs": "3"} | others


def test_the_table_says_what_its_rows_say():
    dense = [0.900, 0.904, 0.902, 0.898, 0.901]
    rows = [row("asp", "int8", seed, value - 0.02 + 0.0002 * seed) for seed, value in enumerate(dense)]
    rows += [row("asp", "fp16", seed, value - 0.001 - 0.0001 * seed) for seed, value in enumerate(dense)]
    rows += [row("dense", "fp16", seed, value) for seed, value in enumerate(dense)]
    rows[-5] |= {"samples_per_s": "12345.6", "sparse_layers": "0"}
    rows += [row("asp", "fp16", 5, 0.5, sparse_layers="0")]
    rows += [
        row(
            "asp",
            "bf16",
            0,
            "",
            reason="error: format=bf16: no layer",
            device="",
            torch="",
            epochs="",
            batch="",
        )
    ]
    found = script("served/accuracy_card.py").tables(rows)
    served = ["Sparse BF16, asp", "Sparse FP16, asp", "Pruned FP16, asp, dense kernels", "Sparse INT8, asp"]
    assert f"| task | Dense FP16 | {' | '.join(served)} |" in found
    assert "| net_set | 90.10 ± 0.22 | – | 89.98 ± 0.23 | 50.00 | 88.14 ± 0.22 |" in found
    assert "| net_set | Sparse FP16, asp | 5 | -0.12 | -0.14 to -0.10 | yes |" in found
    assert "| net_set | Sparse INT8, asp | 5 | -1.96 | -2.00 to -1.92 | no |" in found
    assert "| net_set | 12,346 (0) | – | – | – | – |" in found
    assert found.endswith(
        "a GPU, torch 2.11. Epochs of training: net_set 3.\n\nnet_set, Sparse BF16, asp: "
        "format=bf16: no layer"
    )


def test_verdicts_are_corrected_for_the_settings_of_a_task():
    made = script("served/accuracy_card.py")
    dense = {seed: 0.9 + 0.001 * seed for seed in range(5)}
    near, far = (
        {seed: value - loss + 0.0022 * (seed - 2) for seed, value in dense.items()} for loss in (0.001, 0.02)
    )
    alone = made.compared({"near": made.test(near, dense)})
    both = made.compared({"near": made.test(near, dense), "far": made.test(far, dense)})
    assert (alone["near"][-1], both["near"][-1], both["far"][-1]) == ("yes", "not decided", "no")
    assert alone["near"][:-1] == both["near"][:-1] == (5, "-0.10", "-0.53 to +0.33")


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
