"""The committed cards and pages say what the committed tables say."""

import csv
import re
import shlex
from statistics import median

import documents
import pytest
from documents import text
from experiment import EXPERIMENTS, script

# (script, its table); the other cards are written by hand
CARDS = [
    *((f"{name}/run.py", "results.csv") for name in ("auto", "intervals", "looks", "real_data", "scaling")),
    ("audit/run.py", "operations.csv"),
]


def table(experiment, key, value):
    """The values of a column of results.csv, by those of others."""
    found = {}
    with open(EXPERIMENTS / experiment / "results.csv", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(tuple(row[name] for name in key), []).append(float(row[value]))
    return found


def words_of(name):
    """Of a page of docs/, in one line."""
    return " ".join(text(documents.ROOT / "docs" / name).split())


@pytest.mark.parametrize(("path", "table"), CARDS, ids=[card[0] for card in CARDS])
def test_the_tables_of_a_card_are_those_of_its_rows(path, table):
    with open((EXPERIMENTS / path).with_name(table), newline="") as file:
        parts = script(path).card(list(csv.DictReader(file)))
    committed = text((EXPERIMENTS / path).with_name("README.md"))
    for name, part in parts.items():
        assert f"<!-- {name} -->\n\n{part}\n\n<!-- end of {name} -->" in committed


def test_what_the_pages_say_of_the_cost_of_masks():
    page = words_of("sparsity.md")
    with open(EXPERIMENTS / "masked_step" / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    dense = {row["model"]: float(row["median_ms"]) for row in rows if row["masks"] == "dense"}
    costs = {}
    for row in rows:
        costs.setdefault(row["masks"], []).append(100 * (float(row["median_ms"]) / dense[row["model"]] - 1))
    fixed, sr_ste = ("{:.1f} to {:.1f} %".format(*sorted(costs[name])) for name in ("fixed", "sr_ste"))
    assert f"{fixed} of an eager step for fixed masks, {sr_ste} for `sr_ste` (median times" in page


def test_what_the_pages_say_of_the_search_for_an_order():
    page = words_of("sparsity.md")
    with open(EXPERIMENTS / "permutation" / "results.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "all" and not row["seed"]]
    took = [float(row["cpu_seconds"]) for row in rows]
    more = [100 * (float(row["kept_after"]) - float(row["kept_before"])) for row in rows]
    assert f"keeps [{min(more):.2f} to {max(more):.1f} points more of the magnitude]" in page
    assert f"The search took {min(took):.0f} to {max(took):.0f} s of one core" in page


def test_what_the_pages_say_of_an_epoch_on_a_cpu():
    took = table("speed_cpu", ["precision", "contender"], "epoch_s")  # in the order of the rounds
    pairs = [zip(took[name, "mpx"], took[name, "plain loop"], strict=True) for name in ("fp32", "amp_bf16")]
    longer = sorted(median(mine / loop for mine, loop in rounds) for rounds in pairs)
    assert "an epoch of ResNet-20 takes {:.2f} to {:.2f} times as long]".format(*longer) in words_of(
        "speed.md"
    )


def test_what_the_pages_say_of_the_cost_of_numerics():
    rates = table("numerics_cost", ["model", "mode", "every"], "samples_per_s")
    models = {key[:2] for key in rates}
    # one step in 200
    cost = max(median(rates[*key, "1000000000"]) / median(rates[*key, "1"]) - 1 for key in models) / 200
    assert 0.01 < cost < 0.02
    assert "less than 2 % of the time ([measured](../experiments/numerics_cost) at 200)" in words_of(
        "precision.md"
    )


def test_what_the_pages_say_of_a_mistakes_answer():
    took = table("startup", ["command"], "seconds")
    assert (
        max(
            median(took[name,])
            for name in ("unknown choice", "unknown key", "value out of range", "impossible combination")
        )
        < 1
    )
    assert "reports a mistake in under a second ([measured](../experiments/startup))" in words_of(
        "architecture.md"
    )


def test_what_the_pages_say_of_compiling_a_language_model():
    took = table("language_model", ["precision", "rows", "compiled"], "step_ms")
    saved = 1 - median(took["amp_bf16", "33280", "yes"]) / median(took["amp_bf16", "33280", "no"])
    assert f"but {100 * saved:.0f} % of that of a [recurrent language model]" in words_of("speed.md")


def trainings():
    for card in documents.CARDS:
        for found in re.findall(
            r"python -m mpx\.train ([^`]*?)(?=`| python -m )", re.sub(r"\s*\\?\n\s*", " ", text(card))
        ):
            yield pytest.param(shlex.split(found), id=f"{card.parent.name}: {found}")


@pytest.mark.parametrize("words", list(trainings()))
def test_the_command_of_a_card_composes(train, words):
    """As one job with the first value of each list: Hydra shows no configuration of a sweep."""
    one = (re.sub(r",(?![^\[{]*[\]}]).*", "", word) for word in words if word not in ("-m", "CHANGE"))
    ran = train("--cfg", "job", *one)
    assert ran.code == 0, ran.err
