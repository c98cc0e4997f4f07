"""experiments/scaling: its card, from rows of which some are missing. Measuring needs two GPUs."""

from experiment import script


def row(model, contender, gpus, rate, **more):
    known = {
        "model": model,
        "contender": contender,
        "gpus": str(gpus),
        "round": "0",
        "samples_per_s": str(rate),
    }
    return (
        dict.fromkeys(("all_reduce_ms", "gradient_mib", "rejected"), "")
        | known
        | {"device": "H", "torch": "2", "host": "h"}
        | more
    )


def card(rows):
    return script("scaling/run.py").card(rows)["rates"]


def test_card():
    rows = [row("lstm", "mpx", 1, 100), row("lstm", "mpx", 2, 190), row("lstm", "hand", 1, 100)]
    rows += [row("lstm", "hand", 2, 200), row("resnet18", "mpx", 1, 10)]
    text = card(rows)
    assert text.startswith("2 × H, torch 2, medians of rounds (1), hosts: 1.\n")
    assert "| LSTM | 1 | 100 | – | 100 | – | 1.00 |\n" in text
    assert "| LSTM | 2 | 190 | 1.90 (≥ 1.85: yes) | 200 | 2.00 | 0.95 (≥ 0.98: no) |" in text
    assert "| ResNet-18 | 1 | 10 | – | – | – | – |\n| ResNet-18 | 2 | – | – | – | – | – |" in text
    assert "\n| LSTM | 4 | 390 | 3.90 | – | – | – |" in card([*rows, row("lstm", "mpx", 4, 390)])
    assert "| LSTM | 1 | 102 |" in card([*rows, row("lstm", "mpx", 1, 104, round="1")])
    rejected = card([*rows[:2], *(one | {"rejected": "a mask"} for one in rows[2:4])])
    assert "| LSTM | 2 | 190 | 1.90 (≥ 1.85: yes) | – | – | – |" in rejected
