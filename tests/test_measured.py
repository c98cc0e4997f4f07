"""The figures of README.md and docs/measured.md are those of the committed rows."""

import csv
from statistics import median

import pytest
from documents import README, ROOT, text
from experiment import EXPERIMENTS, script

PAGES = [" ".join(text(page).split()) for page in (README, ROOT / "docs" / "measured.md")]
TABLE = script("measured.py").measured()


def medians(table, **wanted):
    """(model, precision or number of GPUs, contender) -> median of the samples/s that count."""
    rates = {}
    with open(EXPERIMENTS / table, newline="") as file:
        for row in csv.DictReader(file):
            counts = row["samples_per_s"] and not row["rejected"]
            if counts and all(row[key] == value for key, value in wanted.items()):
                key = (row["model"], row.get("precision") or row["gpus"], row["contender"])
                rates.setdefault(key, []).append(float(row["samples_per_s"]))
    return {key: median(values) for key, values in rates.items()}


def test_the_main_table():
    page = text(ROOT / "docs" / "measured.md")
    assert f"<!-- measured -->\n\n{TABLE}\n\n<!-- end of measured -->" in page


def test_the_fastest_formats():
    (line,) = (line for line in TABLE.splitlines() if line.startswith("| its throughput ÷ FP32's"))
    ratios = sorted(map(float, line.split("|")[2:-1]))
    words = f"trains {ratios[0]:.2f} to {ratios[-1]:.2f} times as fast as FP32 at no loss of accuracy"
    assert words in PAGES[0]


@pytest.mark.parametrize(
    ("contender", "words"),
    [("lightning", "Lightning's defaults"), ("hand", "a loop tuned by hand")],
)
def test_the_rivals(contender, words):
    rates = medians("speed/results.csv", section="rivals")
    ahead = [rates[*key[:2], "mpx"] / rate for key, rate in rates.items() if key[2] == contender]
    assert len(ahead) == 8
    for page in PAGES:
        assert f"{min(ahead):.2f} to {max(ahead):.2f} times as fast as {words}" in page


def test_several_gpus():
    rates = medians("scaling/results.csv", contender="mpx")
    two, four = (
        [rate / rates[model, "1", "mpx"] for (model, gpus, _), rate in rates.items() if gpus == count]
        for count in "24"
    )
    assert f"Two H100s train {min(two):.2f} to {max(two):.2f} times as fast as one" in PAGES[0]
    assert f"four {min(four):.2f} to {max(four):.2f} times ({len(four)} models)" in PAGES[1]
