"""experiments/scaling: its card, from rows of which some are missing. Measuring needs two GPUs."""

import csv

from experiment import EXPERIMENTS, script


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


def test_card():
    rows = [row("lstm", "mpx", 1, 100), row("lstm", "mpx", 2, 190), row("lstm", "hand", 1, 100)]
    rows += [
        row("lstm", "hand", 2, 200, all_reduce_ms="1.0", gradient_mib="100"),
        row("resnet18", "mpx", 1, 10),
    ]
    text = script("scaling/run.py").card(rows)
    assert "One round, all from one call on one host." in text
    assert (
        "| LSTM | 1 | 100 | – | 100 | – | 1.00 |\n| LSTM | 2 | 190 | 1.90 (≥ 1.85: yes) | 200 | 2.00 | "
        "0.95 (≥ 0.98: no) |"
    ) in text
    assert "| ResNet-18 | 1 | 10 | – | – | – | – |\n| ResNet-18 | 2 | – | – | – | – | – |" in text
    assert "\n| LSTM | 4 | 390 | 3.90 | – | – | – |" in script("scaling/run.py").card(
        [*rows, row("lstm", "mpx", 4, 390)]
    )
    twice = script("scaling/run.py").card(
        [*rows, row("lstm", "mpx", 1, 104, round="1"), row("lstm", "mpx_hook", 1, 9, round="2")]
    )
    assert "Medians of 1 or 2 rounds, " in twice
    assert "| LSTM | 1 | 102 |" in twice
    # A step of 256 samples takes 2,560 ms; eight GPUs send 1.75 times what two do, and 64 send 1.97 × 100 MiB
    # at 50 GB/s, 4.1 ms.
    assert "| LSTM | 100 | 2560.00 | 1.00 | 95.0% | – | 100% | 100% |" in text
    rejected = script("scaling/run.py").card(
        [*rows[:2], *(one | {"rejected": "a mask"} for one in rows[2:4])]
    )
    assert "| LSTM | 2 | 190 | 1.90 (≥ 1.85: yes) | – | – | – |" in rejected
    assert "The loop by hand of LSTM does not count: a mask." in rejected


def test_two_gpus_lose_more_than_the_all_reduce_takes():
    """So the projection is no bound, as the card says."""
    scaling = script("scaling/run.py")
    with (EXPERIMENTS / "scaling" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for model in scaling.ORDER:
        mine = [row for row in rows if row["model"] == model]
        batch = scaling.setup(model, "amp_bf16", tiny=False).batch
        one, two = (1e3 * gpus * batch / scaling.median(mine, "mpx", str(gpus)) for gpus in (1, 2))
        assert two - one > max(
            float(row["all_reduce_ms"]) for row in mine if row["all_reduce_ms"] and row["gpus"] == "2"
        ), model
