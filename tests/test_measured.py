"""README's measured results, computed from the committed rows without mpx. test_readme.py holds README to what measured.py writes."""

import csv
import json
import re
from base64 import b64decode
from statistics import fmean, median

import numpy as np
import pytest
from documents import README, ROOT, text
from experiment import EXPERIMENTS
from scipy import stats

from mpx.compare.looks import Plan

TASKS = [("resnet18", "cifar10"), ("resnet18", "fashion_mnist"), ("bert_small", "sst2"), ("lstm", "sst2")]
WORDS = {"fp32": "FP32", "tf32": "TF32", "amp": "FP16", "amp_bf16": "BF16"}
FIRST_LEVEL = 0.0152  # of the one-sided test at the first of four looks: Pocock's spending of 5 % by Lan and DeMets
OUTSIDE = (0.0152, 0.0150)  # of the intervals at the first two looks: twice what 2.5 % gives
PART = text(README).partition("<!-- measured -->")[2].partition("<!-- end of measured -->")[0]


def rows(table, **wanted):
    with open(EXPERIMENTS / table, newline="") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]


def column(found, name):
    return np.array([float(row[name]) for row in sorted(found, key=lambda row: int(row["seed"]))])


def cells(task):
    """Of the column of a model and data set, without the first."""
    number = TASKS.index(task) + 1
    return [re.split(r" \| ", line.strip("| "))[number] for line in PART.strip().splitlines()[2:10]]


def test_the_speedups_by_batch_size_within_each_commit():
    """The card's own table compares those of one commit only."""
    card = " ".join(text(EXPERIMENTS / "batch_size" / "README.md").split())
    rates = {}
    for row in rows("batch_size/results.csv"):
        key = (json.loads(row["environment"])["git"], row["model"], row["batch_size"], row["precision"], row["sparsity"])
        rates.setdefault(key, []).append(float(row["train_samples_per_s"]))
    commits, batches = {commit for commit, *_ in rates}, ("32", "128", "512")
    assert len(commits) == 4

    def ratios(model, batch, mine, control):
        """One for each commit that ran both settings."""
        pairs = [(rates.get((commit, model, batch, *mine)), rates.get((commit, model, batch, *control))) for commit in commits]
        return sorted(fmean(here) / fmean(there) for here, there in pairs if here and there)

    def span(found):
        return " to ".join(dict.fromkeys(f"{end:.2f}" for end in (found[0], found[-1])))

    for model, name in {"resnet18": "ResNet-18 (one commit, one seed)", "bert_small": "BERT-small", "resnet20": "ResNet-20",
                        "lstm": "LSTM, whose time steps wait for each other"}.items():  # fmt: skip
        cells = [span(ratios(model, batch, ("amp", "dense"), ("fp32", "dense"))) for batch in batches]
        assert f"| {name} | {' | '.join(cells)} |" in card
    costs = {
        (model, precision, batch): [1 - ratio for ratio in ratios(model, batch, (precision, "2of4"), (precision, "dense"))]
        for model in ("resnet18", "bert_small", "resnet20", "lstm") for precision in ("fp32", "amp") for batch in batches
    }  # fmt: skip
    slowest = costs.pop(("resnet18", "amp", "128"))
    unsteady = [costs.pop((model, precision, "32")) for model, precision in (("resnet20", "fp32"), ("resnet18", "amp"))]
    most = {batch: f"{100 * max(max(found) for key, found in costs.items() if key[2] == batch):.1f} %" for batch in batches}
    assert f"they cost at most {most['512']} at a batch size of 512" in card
    of_resnet18 = f"{100 * min(slowest):.1f} to {100 * max(slowest):.1f} % for ResNet-18 in FP16"
    assert f"At 128 they cost {of_resnet18} and at most {most['128']} otherwise. At 32 they cost at most {most['32']}, with" in card
    small, large = (" and ".join(f"{100 * cost:.0f}" for cost in sorted(found) if cost > 0) for found in unsteady)
    assert f"ResNet-20 in FP32 ({small} %) and ResNet-18 in FP16 ({large} % in two seeds" in card
    page = " ".join(text(ROOT / "docs" / "sparsity.md").split())
    least, most_of_all = large.split(" and ")
    assert f"but {least} % of some small ones, and in one run {most_of_all} % ([batch_size]" in page
    speedups = re.findall(r"(\d)×( \()?", card.partition("<!-- end of results -->")[0])
    assert f"refuses {36 - len(speedups)} of 36 speed-ups" in card
    assert f"leaves {sum(not interval for _, interval in speedups)} without an interval" in card


@pytest.mark.parametrize(
    ("contender", "words"),
    [("lightning", "Lightning's defaults"), ("lightning, tuned", "Lightning tuned (most for the LSTM"), ("hand", "a loop tuned by hand")],
)
def test_the_rivals(contender, words):
    counted = [row for row in rows("speed/results.csv", section="rivals") if row["samples_per_s"] and not row["rejected"]]
    assert len({(row["host"], row["commit"], row["device"]) for row in counted}) == 1
    at_a_time = " ".join(text(EXPERIMENTS / "speed" / "README.md").split())
    assert "Two models ran at the same time, each on its own of two GPUs" in at_a_time
    of = {}
    for row in counted:
        of.setdefault((row["model"], row["precision"], row["contender"]), []).append(float(row["samples_per_s"]))
    ahead = {tuple(task): median(of[*task, "mpx"]) / median(values) for (*task, who), values in of.items() if who == contender}
    assert contender != "lightning, tuned" or max(ahead, key=ahead.get)[0] == "lstm"
    ends = (min(ahead.values()), max(ahead.values()))
    ends = dict.fromkeys(f"{end:.3f}" if 0.995 <= end < 1 else f"{end:.2f}" for end in ends)  # a rival that is just faster shows
    assert f" {' to '.join(ends)} times as fast as {words}" in PART
    half, bf16 = (sum(name == precision for _, name in ahead) for precision in ("amp", "amp_bf16"))
    assert f", {bf16} models in BF16 and {half} models in FP16, 1 or 2 rounds, steps as compiled for a long run)" in PART
    short = sorted(
        median(of["bert_small", name, "mpx, pool=first"]) / median(of["bert_small", name, "mpx"]) for name in ("amp", "amp_bf16")
    )
    assert "for the first token alone, and is {:.2f} to {:.2f} times as fast as that.".format(*short) in PART


DECIDED = [("lstm", "sst2"), ("bert_small", "sst2"), ("resnet18", "cifar10"), ("resnet18", "fashion_mnist")]  # as the card names them


@pytest.mark.parametrize(("model", "data"), TASKS)
def test_a_column(model, data):
    """Each setting by a one-sided test at the lowest level of a look, by Holm's correction."""
    groups = settings(model, data)
    control = groups.pop(("fp32", "dense"))
    chances = {}
    for name, runs in groups.items():
        less = [accuracy(runs[seed]) - accuracy(control[seed]) + 0.005 for seed in runs]
        if len(less) >= 5:  # the first look
            chances[name] = stats.ttest_1samp(less, 0, alternative="greater").pvalue
    good = []
    for rank, name in enumerate(sorted(chances, key=chances.get)):
        if chances[name] * (len(chances) - rank) >= FIRST_LEVEL:
            break
        good.append(name)
    assert len(good) == 7
    seeds = " or ".join(map(str, sorted(set(map(len, groups.values())))))
    mean = np.mean(list(map(accuracy, control.values())))
    of, test, safe, first, faster, sooner, change, _ = cells((model, data))
    assert (of, test) == (f"H100; {seeds}", f"{100 * mean:.1f} %")
    assert safe.startswith(f"{len(good)} of 7; ")
    speed, took = ({name: find(groups[name]) for name in good} for find in (rate, seconds))
    best = max(speed, key=speed.get)
    assert best == ("amp" if model == "resnet18" else "amp_bf16", "dense")
    assert first == WORDS[best[0]] + (" (not for the population); none" if model == "bert_small" else "; none")
    for name in good:  # none is shown to take less time
        assert stats.ttest_ind(times(groups[best]), times(groups[name]), equal_var=False, alternative="greater").pvalue > 0.05
    assert faster == f"{speed[best] / rate(control):.2f}"
    ratio = seconds(control) / took[best]
    low, high = map(float, re.fullmatch(rf"{ratio:.2f} \((.+) to (.+)\)", sooner).groups())
    assert (low, high) == pytest.approx(fieller(times(control), times(groups[best])), abs=0.006)
    pruned = 100 * np.array(list(below(groups["amp", "2of4"], groups["amp", "dense"])))
    half = stats.t.ppf(0.975, len(pruned) - 1) * stats.sem(pruned)
    assert numbers(change) == pytest.approx([pruned.mean(), pruned.mean() - half, pruned.mean() + half], abs=0.006)


@pytest.mark.parametrize(("model", "data"), TASKS)
def test_what_2of4_changes_to_dense_runs_without_the_second_rise(model, data):
    without = settings(model, data, "grid/no_restart.csv")["amp", "dense"]
    change = 100 * np.array(list(below(settings(model, data)["amp", "2of4"], without)))
    half = stats.t.ppf(0.975, len(change) - 1) * stats.sem(change)
    assert len(change) == len(without) == 5
    assert numbers(cells((model, data))[-1]) == pytest.approx([change.mean(), change.mean() - half, change.mean() + half], abs=0.006)


def test_dense_cifar10_without_the_second_rise():
    mean = 100 * np.mean(list(map(accuracy, rows("grid/no_restart.csv", data="cifar10"))))
    assert f"(CIFAR-10 without: [{mean:.1f} %](experiments/grid) in FP16)" in " ".join(text(README).split())
    assert f"five later runs in FP16 have a mean of {mean:.2f} %" in " ".join(text(EXPERIMENTS / "recipe" / "README.md").split())
    assert {row["changes"] for row in rows("grid/no_restart.csv")} == {""}
    assert {row["changes"] for row in rows("grid/results.csv")} == {"schedule.restart=0.5"}


def test_tasks_with_seeds_outside_of_until_decided():
    tasks = {(row["model"], row["data"]) for row in rows("grid/results.csv", looks="")}
    assert tasks == {("bert_small", "sst2"), ("resnet18", "fashion_mnist"), ("resnet20", "cifar10")}
    card = " ".join(text(EXPERIMENTS / "grid" / "README.md").split())
    assert "four of the sixth for the rest of Fashion-MNIST and ResNet-20's seeds from 3 or 4 on" in card
    assert "So its further seeds were trained by `seed=7,8,9` in place of `until=decided`" in card
    assert "The sixth host's runs came by `seed=` as well" in card


def test_the_longest_training_of_the_grid():
    tasks = {(row["model"], row["data"]) for row in rows("grid/results.csv")}
    tuned = [text(ROOT / "conf" / "tuned" / f"{model}_{data}.yaml") for model, data in tasks]
    epochs = max(int(re.search(r"max_epochs: (\d+)", words)[1]) for words in tuned)
    assert f"; runs of more than {epochs} epochs; " in text(README)


def test_what_the_grids_card_says():
    card = " ".join(text(EXPERIMENTS / "grid" / "README.md").split()).replace("\\", "")
    found = [settings(*task) for task in DECIDED]
    assert "The studies took {}, {}, {} and {} runs".format(*(sum(map(len, of.values())) for of in found)) in card
    pairs = [(of["fp32", "dense"], of[name, "dense"]) for of, name in zip(found, ("amp_bf16", "amp_bf16", "amp", "amp"), strict=True)]
    faster = "{:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*(rate(best) / rate(control) for control, best in pairs))
    longer = "{:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*(seconds(control) / seconds(best) for control, best in pairs))
    assert f"they have {faster} times the throughput of FP32, which takes {longer} times as long to train" in card
    slower = [100 * (1 - rate(of[name, "2of4"]) / rate(of[name, "dense"])) for of in found for name in WORDS]
    assert f"They are {min(slower):.1f} to {max(slower):.1f} % slower" in card
    page = " ".join(text(ROOT / "docs" / "sparsity.md").split())
    assert f"Of steps in a CUDA graph, fixed masks cost {min(slower):.1f} to {max(slower):.1f} % in the [grid]" in page
    change = [100 * np.mean(list(below(of[name, "2of4"], of[name, "dense"]))) for of in found for name in WORDS]
    assert f"between {-min(change):.1f} points below and {max(change):.1f} above" in card
    low = {}  # of the interval for the population: test_experiment_cards.py holds the table to the rows
    for task in DECIDED:
        table = card.partition(f"### {task[0]} on {task[1]}")[2].partition("###")[0]
        low[task] = re.findall(r"\| ([\w-]+) \| \d+ \| [^|]+ \| [^|]+ \| ([−+][\d.]+) to [^|]+\| no loss", table)
        low[task] = {name: float(value.replace("−", "-")) for name, value in low[task]}
        wider = sum(value > -0.005 for value in low[task].values())
        assert cells(task)[2].endswith(f"; {wider}")
    beyond = {name: f"{-100 * value:.2f}" for name, value in low["bert_small", "sst2"].items() if value <= -0.005}
    assert f"BF16, dense, reaches {beyond.pop('amp_bf16-dense')} points of loss" in card
    assert f"FP16, dense, and TF32, 2:4 ({beyond.pop('amp-dense')} and {beyond.pop('tf32-2of4')})" in card
    assert not beyond
    assert "the other twenty-five lie within the margin" in card
    assert [sum(value > -0.005 for value in of.values()) for of in low.values()] == [7, 4, 7, 7]


def test_what_the_grids_card_says_of_the_lstms_earlier_settings():
    card, of = " ".join(text(EXPERIMENTS / "grid" / "README.md").split()), settings("lstm", "sst2", "grid/earlier.csv")
    assert f"`earlier.csv`, {sum(map(len, of.values()))} runs" in card
    first = {name: {seed: run for seed, run in runs.items() if seed in "01234"} for name, runs in of.items()}
    less = [-100 * np.mean(list(below(first[name, "2of4"], first["fp32", "dense"]))) for name in WORDS]
    assert f"lay {min(less):.1f} to {max(less):.1f} points below dense FP32 over five seeds" in card


def test_what_the_card_of_the_digits_says():
    card = text(EXPERIMENTS / "digits_2of4" / "README.md").replace("−", "-")
    found = re.findall(r"\| fp32-2of4 \| (\d+) \|[^|]+\|[^|]+\| (\S+) to \S+ \| no loss, look (\d)", card)
    assert sorted((int(seeds), look) for seeds, _, look in found) == [(5, "1"), (5, "1"), (10, "2")]
    low = [-100 * float(value) for _, value, _ in found]
    said = " ".join(card.split())
    assert f"these intervals reach losses of {min(low):.2f} to {max(low):.2f} points" in said
    assert f"The study took {len(rows('digits_2of4/results.csv'))} runs" in said
    single = Plan(margin=0.01, confidence=0.95, control="auto", max_seeds=20, looks=4).fixed_seeds()
    assert f"takes {single} seeds of each setting, {6 * single} runs" in said


def test_what_the_grids_card_says_of_one_schedule():
    card, cifar10 = " ".join(text(EXPERIMENTS / "grid" / "README.md").split()), settings("resnet18", "cifar10")
    without = np.mean(list(map(accuracy, rows("grid/no_restart.csv", data="cifar10"))))
    more = 100 * (without - np.mean(list(map(accuracy, cifar10["amp", "dense"].values()))))
    assert f"dense ResNet-18 reaches {100 * without:.1f} % on CIFAR-10 in FP16, {more:.1f} points more" in card
    assert f"2:4 in FP16 loses {-numbers(cells(('resnet18', 'cifar10'))[-1])[0]:.1f} points to such a run" in card
    assert f"On Fashion-MNIST it loses {-numbers(cells(('resnet18', 'fashion_mnist'))[-1])[0]:.1f}." in card
    gained = "{:.1f} ({:.1f} to {:.1f})".format(*numbers(cells(("bert_small", "sst2"))[-1]))
    assert f"BERT-small, which with the same seeds is {gained} in the new runs" in card
    lost = [-value for value in numbers(cells(("resnet18", "cifar10"))[-1])]
    decided = " ".join(text(EXPERIMENTS / "decided" / "README.md").split())
    assert f"2:4 loses {lost[0]:.1f} points ({lost[2]:.1f} to {lost[1]:.1f})" in decided


def test_what_the_grids_card_says_of_fashion_mnist():
    card, of = " ".join(text(EXPERIMENTS / "grid" / "README.md").split()), settings("resnet18", "fashion_mnist")
    dense = [np.mean([accuracy(of[name, "dense"][seed]) for seed in "01234"]) for name in WORDS]
    assert 100 * (max(dense) - min(dense)) < 0.1
    assert f"FP16 has {rate(of['amp', 'dense']) / rate(of['amp_bf16', 'dense']):.2f} times the throughput of BF16" in card
    cifar10 = settings("resnet18", "cifar10")
    assert f"so it has on CIFAR-10 ({rate(cifar10['amp', 'dense']) / rate(cifar10['amp_bf16', 'dense']):.2f})" in card
    low = of["amp", "2of4"].pop("1")
    assert f"seed 1, ends at {100 * accuracy(low):.1f} %" in card
    assert float(low["skipped_steps"]) == 2
    others = [100 * accuracy(run) for runs in of.values() for run in runs.values()]
    assert f"the others between {min(others):.1f} and {max(others):.1f}" in card


def test_what_the_grids_card_says_of_resnet20():
    card, of = " ".join(text(EXPERIMENTS / "grid" / "README.md").split()), settings("resnet20", "cifar10")
    for name, words in (("dense", "dense runs, at {} to {} %,"), ("2of4", "The pruned runs have {} to {} %.")):
        found = [100 * accuracy(run) for (_, sparsity), runs in of.items() if sparsity == name for run in runs.values()]
        assert words.format(f"{min(found):.1f}", f"{max(found):.1f}") in card
    control = of["fp32", "dense"]
    assert f"FP16 has {rate(of['amp', 'dense']) / rate(control):.2f} times the throughput of FP32;" in card
    means, lows, highs = [], [], []
    for name in WORDS:
        lost = -100 * np.array(list(below(of[name, "2of4"], control)))
        half = stats.t.ppf(1 - OUTSIDE[1] / 2, len(lost) - 1) * stats.sem(lost)
        assert len(lost) == 10
        assert lost.mean() - half < 0.5 < lost.mean() + half
        means.append(lost.mean())
        lows.append(lost.mean() - half)
        highs.append(lost.mean() + half)
    assert f"their means lie {min(means):.1f} to {max(means):.1f} points below FP32's, with intervals from {min(lows):.1f} to" in card
    assert f"to {max(highs):.1f}, so that neither a loss of half a point nor none is shown in any format" in card
    assert {len(runs) for runs in of.values()} == {10}
    assert "2:4 goes on to the third in all four formats" in card


def test_what_readme_says_of_the_tasks_that_lose():
    lost, more, of, lstm = [], [], settings("resnet20", "cifar10"), settings("lstm", "wikitext2")
    perplexity = {key: np.mean([float(run["test/perplexity"]) for run in runs.values()]) for key, runs in lstm.items()}
    for name in WORDS:
        pruned = of[name, "2of4"]
        lost.append(-100 * np.mean(list(below(pruned, of["fp32", "dense"]))))
        more.append(perplexity[name, "2of4"] - perplexity["fp32", "dense"])
    neither = "which is shown neither to be a loss nor to be none"
    for costs, unit, decided in ((lost, "points", neither), (more, "of perplexity", "a loss in every format")):
        assert f"2:4 costs {min(costs):.1f} to {max(costs):.1f} {unit}, {decided}" in PART
    for fastest, tasks in ((of["amp", "dense"], of), (lstm["amp_bf16", "dense"], lstm)):
        assert f" at no loss, at most {rate(fastest) / rate(tasks['fp32', 'dense']):.2f} times as fast as FP32; " in PART


def test_what_the_cards_say_of_the_language_model():
    card = " ".join(text(EXPERIMENTS / "grid" / "README.md").split())
    of = settings("lstm", "wikitext2")
    found = {key: np.array([float(runs[str(n)]["test/perplexity"]) for n in range(5)]) for key, runs in of.items()}
    dense = np.array([found[name, "dense"] for name in WORDS])
    more = [found[name, "2of4"] - found[name, "dense"] for name in WORDS]
    means = dense.mean(axis=1)
    words = f"{dense.min():.1f} to {dense.max():.1f} over five seeds, "
    words += f"with means of {min(means):.1f} to {max(means):.1f} in the four formats."
    assert f"the dense LSTM has a perplexity of {words}" in card
    control, half = of["fp32", "dense"], [of[name, "dense"] for name in ("amp", "amp_bf16")]
    faster = " and ".join(f"{rate(runs) / rate(control):.2f}" for runs in half)
    assert f"train {faster} times as fast as FP32" in card
    assert f"Each pruned run has {np.min(more):.1f} to {np.max(more):.1f} more than the dense run of its format and seed" in card
    assert {len(runs) for runs in of.values()} == {5}
    of = settings("lstm", "wikitext2", "grid/earlier.csv")
    before = [float(run["test/perplexity"]) for (_, sparsity), runs in of.items() if sparsity == "dense" for run in runs.values()]
    assert f"`earlier.csv`, {sum(map(len, of.values()))} runs) dense runs have {min(before):.1f} to {max(before):.1f}" in card
    tried = sorted((float(row["val/perplexity"]), row["changes"]) for row in rows("tuning/wikitext2.csv"))
    assert tried[0][1] == "data.batch_size=80 data.seq_len=140 model.dropout=0.6 optimizer.lr=0.004"
    words = f"lowest validation perplexity, {tried[0][0]:.1f}; the second lowest is {tried[1][0]:.1f} (`wikitext2.csv`)"
    assert words in " ".join(text(EXPERIMENTS / "tuning" / "README.md").split())


def test_what_the_grids_card_says_of_first_runs():
    """On a host that they had to themselves."""
    took = {}
    for row in rows("grid/results.csv", exclusive="true"):
        about = json.loads(row["environment"])
        if not about.get("resumed_from_steps"):
            key = (row["model"], row["data"], row["precision"], row["sparsity"], about["host"])
            took.setdefault(key, []).append((about["started_at"], float(row["time_to_train_s"])))
    took = {key: [seconds for _, seconds in sorted(found)] for key, found in took.items() if len(found) > 2}
    longer = {key: found[0] - np.mean(found[1:]) for key, found in took.items()}
    card = " ".join(text(EXPERIMENTS / "grid" / "README.md").split())
    assert f"may take up to {max(longer.values()):.0f} s longer than its others" in card
    often = [key[2] for key, more in longer.items() if more > 1]
    assert sum(name in ("amp", "amp_bf16") for name in often) > len(often) / 2
    (first, *others) = next(found for key, found in took.items() if key[:4] == ("resnet18", "cifar10", "amp", "dense"))
    assert f"takes {first:.1f} s in dense FP16 for the first time, and {min(others):.1f} to {max(others):.1f} s then" in card


def test_what_the_grids_card_says_of_uncommitted_changes():
    found = [(row["model"], row["data"], json.loads(row["environment"])["git_dirty"]) for row in rows("grid/results.csv")]
    dirty = {task: found.count((*task, True)) for task in {tuple(one[:2]) for one in found}}
    assert {task: count for task, count in dirty.items() if count} == {
        ("lstm", "sst2"): 75, ("resnet20", "cifar10"): 27 + 24, ("lstm", "wikitext2"): 4,
    }  # fmt: skip
    card = " ".join(text(EXPERIMENTS / "grid" / "README.md").split())
    assert "the LSTM's runs on SST-2, ResNet-20's first 27 and the 28 of the ninth host had uncommitted changes" in card


def test_an_interval_for_the_population():
    """By the formula of mpx/compare/population.py, at the level of the second of four looks."""
    right = {}
    for row in rows("grid/predictions.csv", model="bert_small", data="sst2", sparsity="dense"):
        bits = np.unpackbits(np.frombuffer(b64decode(row["right"]), np.uint8))
        right.setdefault(row["precision"], {})[int(row["seed"])] = bits[: int(row["samples"])].astype(float)
    change = np.array([right["amp_bf16"][seed] - right["fp32"][seed] for seed in range(10)])
    seeds, samples = change.shape
    of_seeds, mean = change.mean(axis=1).var(ddof=1), change.mean()
    rest = (change.var(axis=0, ddof=1).mean() - of_seeds) * samples / (samples - 1)
    by_sample = np.array([*(change.mean(axis=0) - mean), 1, -1])
    of_samples = (by_sample**2).sum() / (samples + 1) - rest / seeds
    tail = OUTSIDE[1] / 2
    half = np.sqrt(stats.t.ppf(tail, seeds - 1) ** 2 * of_seeds / seeds + stats.norm.ppf(tail) ** 2 * of_samples / samples)
    card = text(EXPERIMENTS / "grid" / "README.md").replace("\\", "").replace("−", "-")
    table = card.partition("### bert_small on sst2")[2].partition("###")[0]
    low, high = re.search(r"\| amp_bf16-dense (?:\|[^|]+){3}\| (\S+) to (\S+) \|", table).groups()
    assert (float(low), float(high)) == pytest.approx((mean - half, mean + half), abs=6e-5)


def settings(model, data, table="grid/results.csv"):
    """(precision, sparsity) -> seed -> row."""
    groups = {}
    for row in rows(table, model=model, data=data):
        groups.setdefault((row["precision"], row["sparsity"]), {})[row["seed"]] = row
    return groups


def numbers(cell):
    return [float(number) for number in re.findall(r"[+-][\d.]+", cell.replace("−", "-"))]


def accuracy(row):
    return float(row["test/accuracy"])


def below(runs, others):
    yield from (accuracy(runs[seed]) - accuracy(others[seed]) for seed in runs.keys() & others.keys())


def on_one_host(runs):
    """The rows of the host that most ran on."""
    hosts = [json.loads(row["environment"]).get("host") for row in runs.values()]
    return [row for row, host in zip(runs.values(), hosts, strict=True) if host == max(hosts, key=hosts.count)]


def rate(runs):
    return np.mean([float(row["train_samples_per_s"]) for row in on_one_host(runs)])


def seconds(runs):
    return np.mean(times(runs))


def times(runs):
    """Of runs that were not cut off."""
    return [float(row["time_to_train_s"]) for row in on_one_host(runs) if "resumed_from_steps" not in row["environment"]]


def fieller(a, b):
    """The 95 % interval of the ratio of two means, by Welch's degrees of freedom; with few values, by those of the smaller side."""
    ratio, of_a, of_b = np.mean(a) / np.mean(b), stats.sem(a) ** 2, (np.mean(a) / np.mean(b) * stats.sem(b)) ** 2
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    t = stats.t.ppf(0.975, min(len(a), len(b)) - 1 if min(len(a), len(b)) < 4 and len(a) != len(b) else freedom)
    g = (t * stats.sem(b) / np.mean(b)) ** 2
    half = t / np.mean(b) * np.sqrt(of_a * (1 - g) + of_b)
    return (ratio - half) / (1 - g), (ratio + half) / (1 - g)


def rates(table, contender, **wanted):
    of = {}
    for row in rows(table, contender=contender, **wanted):
        if row.get("rejected"):
            continue
        of.setdefault((row["model"], row["gpus"]), []).append(float(row["samples_per_s"]))
    return {key: fmean(values) for key, values in of.items()}


def speedups(of, count):
    return [rate / of[model, "1"] for (model, gpus), rate in of.items() if gpus == count and (model, "1") in of]


def test_several_gpus():
    """Of earlier calls too, of which each has a commit of its own: the newest is not the best by chance alone."""
    mine, hand = (rates("scaling/results.csv", who) for who in ("mpx", "hand"))
    two, four = (speedups(mine, count) for count in "24")
    commits = {row["commit"] for row in rows("scaling/earlier.csv")}
    before = [ratio for commit in commits for ratio in speedups(rates("scaling/earlier.csv", "mpx", commit=commit), "2")]
    beside = [mine[pair] / hand[pair] for pair in mine.keys() & hand.keys() if pair[1] != "1"]
    words = f"Two train {min(two):.2f} to {max(two):.2f} times as fast as one ({min(before):.2f} to {max(before):.2f} in earlier rounds), "
    words += f"four {min(four):.2f} to {max(four):.2f} times ({len(four)} models), and both "
    assert {row["round"] for row in rows("scaling/results.csv")} == {"0"}
    for model in ("resnet18", "lstm", "bert_small", "resnet50"):
        hosts = {row["host"] for row in rows("scaling/results.csv", model=model)}
        assert len(hosts) == 1
    assert words + f"{min(beside):.2f} to {max(beside):.2f} times as fast as such a loop on as many." in PART
    page = " ".join(text(ROOT / "docs" / "speed.md").split())
    assert f"Two H100s train {min(two):.2f} to {max(two):.2f} times as fast as one, four {min(four):.2f} to {max(four):.2f} times" in page
    assert f"one round; two had {min(before):.2f} to {max(before):.2f} in earlier ones" in page


def test_what_the_card_of_several_gpus_says():
    card, of = " ".join(text(EXPERIMENTS / "scaling" / "README.md").split()), {}
    for row in rows("scaling/results.csv", contender="mpx") + rows("scaling/earlier.csv", contender="mpx"):
        of.setdefault((row["model"], row["commit"]), {})[row["gpus"]] = row
    commits = list(dict.fromkeys(commit for model, commit in of if model == "lstm"))

    def faster(model, commit):
        found = of[model, commit]
        return float(found["2"]["samples_per_s"]) / float(found["1"]["samples_per_s"])

    new, *earlier = commits
    said = f"the LSTM {faster('lstm', new):.3f} times as fast as one, just below the bound of 1.85, and BERT-small "
    assert said + f"{faster('bert_small', new):.3f} times" in card
    lstm, bert = (" and ".join(f"{faster(model, commit):.2f}" for commit in earlier) for model in ("lstm", "bert_small"))
    assert f"Two earlier rounds measured {lstm}, and {bert}" in card
    steps = {model: [float(of[model, new][gpus]["step_ms_p50"]) for gpus in "124"] for model in ("lstm", "bert_small")}
    assert "the LSTM takes {:.2f} ms on one, {:.2f} on two and {:.2f} on four".format(*steps["lstm"]) in card
    assert "BERT-small {:.2f}, {:.2f} and {:.2f}".format(*steps["bert_small"]) in card
    (alone,) = {row["all_reduce_ms"] for row in rows("scaling/results.csv", model="lstm", gpus="2") if row["all_reduce_ms"]}
    assert f"takes {float(alone):.2f} of the {steps['lstm'][1] - steps['lstm'][0]:.2f} ms" in card
    mean = 2 * 256 / float(of["lstm", new]["2"]["samples_per_s"]) * 1e3
    assert mean > float(of["lstm", new]["2"]["step_ms_p95"])
