"""results.csv: what is written reads back as the same runs, to the last bit."""

import csv
import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import made, seeds

from mpx.compare.results import from_csv, to_csv
from mpx.compare.rules import MAX_RATE, MIN_RATE
from mpx.errors import UserError
from mpx.printing import shown

SHARES = st.floats(0, 1)
RATES = st.floats(MIN_RATE, MAX_RATE)
SAFE = st.characters(codec="utf-8").filter(lambda letter: shown(letter) == letter != "\n")
WORD = st.text(SAFE.filter(lambda letter: not letter.isspace()))
TEXT = st.text(SAFE, min_size=1)


def same(runs):
    """Equality of runs leaves out the environment."""
    return [(run, run.environment) for run in runs]


@settings(max_examples=100, deadline=None)
@given(
    value=SHARES, speed=st.none() | RATES, switch=st.none() | st.booleans(), steps=st.none() | st.integers(0, 2**60),
    text=TEXT, folder=st.none() | TEXT, changes=st.dictionaries(st.from_regex(r"[a-z_.]+", fullmatch=True), WORD),
)  # fmt: skip
def test_a_run_reads_back_as_it_was(value, speed, switch, steps, text, folder, changes):
    run = made(
        value=value, speed=speed, exclusive=switch, emulated=switch, skipped_steps=steps, model=text, device=folder, folder=folder,
        environment={"command": text, "threads": 8}, changes=changes,
    )  # fmt: skip
    assert same(from_csv(to_csv([run]), "x.csv")) == same([run])


def test_runs_with_different_metrics_and_awkward_floats():
    random.seed(0)
    runs = seeds("fp32-dense", [random.random() for _ in range(50)])
    runs += seeds("amp-2of4 optimizer.lr=0.05", [100 * random.random(), 5e-324, 1e38], metric="test/perplexity")
    runs.append(made("amp-dense", 9, None, status="diverged", metrics={}))
    assert same(from_csv(to_csv(runs), "x.csv")) == same(runs)


def test_how_a_speed_was_measured_is_a_column_only_where_there_is_something_to_say():
    runs = [made(), made(seed=1, speed_measured="alone, after the sweep, on seed 1")]
    assert same(from_csv(to_csv(runs), "x.csv")) == same(runs)
    assert "speed_measured" not in to_csv(runs[:1])


def test_columns_say_what_they_hold():
    header, row = csv.reader(io.StringIO(to_csv([made(value=0.1 + 0.2)])))
    row = dict(zip(header, row, strict=True))
    assert header[:8] == ["model", "data", "precision", "sparsity", "changes", "seed", "status", "test/accuracy"]
    assert row["test/accuracy"] == "0.30000000000000004"
    assert (row["exclusive"], row["emulated"], row["density"]) == ("true", "false", "")


GOOD = to_csv(seeds("fp32-dense", [0.95, 0.96]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "results=x.csv has no column model: it was not written by mpx.compare."),
        (GOOD.replace(",", ";"), "results=x.csv has no column model: its fields are not separated by commas."),
        (GOOD.replace("batch_size", "batch"), "results=x.csv has no column batch_size"),
        (GOOD.replace("0.96", "high"), "results=x.csv, line 3: test/accuracy=high is not a valid value of that column."),
        (GOOD.replace("0.96", "nan"), "results=x.csv, line 3: test/accuracy=nan is not a valid value of that column."),
        (GOOD.replace("1001.0", "inf"), "results=x.csv, line 3: train_samples_per_s=inf is not a valid value of that column."),
        (GOOD.replace("completed", "complete"), "results=x.csv, line 2: status=complete is not a valid value of that column."),
        (GOOD.replace('"{""torch"": ""2.15.0""}"', '"{""code"": 3}"'), "results=x.csv, line 2: environment="),
        (GOOD.replace('"{""torch"": ""2.15.0""}"', "[]"), "results=x.csv, line 2: environment=[] is not a valid value of that column."),
        (GOOD.replace("256", "2.5"), "results=x.csv, line 2: batch_size=2.5 is not a valid value of that column."),
        (GOOD.replace("true", "yes"), "results=x.csv, line 2: exclusive=yes is not a valid value of that column."),
        (GOOD.replace("dense,,1", "dense,,"), "results=x.csv, line 3: seed is missing."),
        (GOOD + "resnet18,cifar10\n", "results=x.csv, line 4: precision is missing."),
        (GOOD.replace("fp32", ""), "results=x.csv, line 2: precision is missing."),
        (GOOD.replace("2.15.0", '"' + "2" * 100), "results=x.csv, line 2: ',' expected after"),
        (GOOD.replace('"{""torch', '"{"" ""torch'), "results=x.csv, line 2: environment="),
        (GOOD[:-1], "results=x.csv, line 3: it is cut off, since no line break ends it."),
        (GOOD[:-5], "results=x.csv, line 3: unexpected end of data."),
        (GOOD[: GOOD.rindex(',"{')] + "\n", "results=x.csv, line 3: environment is missing."),
        (GOOD.replace("cifar10,", "cifar10,cifar100,"), "results=x.csv, line 2: it has"),
        (GOOD.replace("1001.0", "1e308"), "results=x.csv, line 3: train_samples_per_s=1e308 is not a valid value of that column."),
        (GOOD.replace("cifar10", "\x1b[31mred"), "results=x.csv, line 2: data="),
        (GOOD.replace(",256,", f",{10**400},"), "results=x.csv, line 2: batch_size="),
    ],
)
def test_a_damaged_file_is_named_by_line_and_column(text, message):
    with pytest.raises(UserError) as error:
        from_csv(text, "x.csv")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250
