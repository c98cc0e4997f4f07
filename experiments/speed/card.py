"""What stands between the marks in README.md, from results.csv alone."""

import csv
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from setups import MODELS, TITLES

HALVES = ("amp", "amp_bf16")
TARGETS = {  # from the project's goals: at least so many times as fast
    "hand": {"resnet50": 0.98, "resnet18": 0.98, "bert_small": 1.05, "lstm": 1.05},
    "lightning": {"resnet50": 2.2, "resnet18": 2.8, "bert_small": 1.4, "lstm": 1.1},
}
NAMES = {
    "hand": "loop tuned by hand", "lightning": "Lightning's defaults", "loop": "plain eager loop", "transformers": "transformers' Trainer",
    "timm": "timm's step",
}  # fmt: skip
PAIRS = {  # section: (who, against whom, at least, the question)
    "sparse": ("2of4", "dense", 0.97, "masked 2:4 against dense"),
    "numerics": ("on", "off", 0.98, "looking at gradients (the default) against not"),
    "whole": ("whole run", "its steps", 0.9, "a whole run with evaluation, logging and checkpoints against its own steps"),
}
MARK, END = "<!-- measured -->", "<!-- end of measured -->"
RESULTS = """{setup}, {rounds}. Higher is better; a target that is met is in bold.

## mpx ÷ the other, samples/s

{ratios}

## Samples/s

{rates}

## Within mpx

{within}
{rest}{failed}"""

Rates = dict[tuple[str, str, str], dict[str, float]]  # (section, model, precision) -> contender -> median


def write_card(folder: Path, parts: list[Path]) -> str:
    """parts: tables to join to folder/results.csv first, the newest of a measurement counting. Returns what was written."""
    path = folder / "results.csv"
    if parts:
        join(parts, path)
    if not path.exists():
        sys.exit("error: there is no results.csv here yet. Measure first, or name the files that hold parts of it: --card a.csv b.csv")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    part, card = results(rows), folder / "README.md"
    before, _, rest = (card.read_text() if card.exists() else f"{MARK}\n{END}\n").partition(MARK)
    card.write_text(f"{before}{MARK}\n\n{part}\n{END}{rest.partition(END)[2]}")
    return part


def join(parts: list[Path], path: Path) -> None:
    found: dict[tuple, dict] = {}
    for part in parts:
        with open(part, newline="") as file:
            for row in csv.DictReader(file):
                found[tuple(row[key] for key in ("section", "model", "precision", "contender", "round"))] = row
    rows = list(found.values())
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def results(rows: list[dict[str, str]]) -> str:
    rates = medians(rows)
    about = "; ".join(sorted({f"{row['device']}, torch {row['torch']}" for row in rows}))
    turns = Counter((row["section"], row["model"], row["precision"], row["contender"]) for row in rows).values()
    rounds = f"{min(turns)} to {max(turns)} rounds" if min(turns) < max(turns) else f"{max(turns)} rounds"
    failed = sorted({f"- {TITLES[row['model']]}, {row['precision']}, {row['contender']}: {row['note']}" for row in rows if not rate(row)})
    failed = "\n## Not measured\n\n" + "\n".join(failed) + "\n" if failed else ""
    tables = {"ratios": ratios(rates), "rates": all_rates(rates), "within": within(rates)}
    return RESULTS.format(setup=about, rounds=rounds, **tables, rest=where_the_rest_went(rows), failed=failed)


def where_the_rest_went(rows: list[dict[str, str]]) -> str:
    """Each whole run's seconds by what they were for, as its note has them; the first run of a process also loads libraries."""
    lines = [
        f"- {TITLES[row['model']]}, {row['precision']}, run {int(row['round']) + 1}: {row['note']}"
        for row in rows
        if (row["section"], row["contender"]) == ("whole", "whole run") and rate(row)
    ]
    return "\nWhole runs:\n\n" + "\n".join(lines) + "\n" if lines else ""


def rate(row: dict[str, str]) -> float | None:
    return float(row["samples_per_s"]) if row["samples_per_s"] else None


def medians(rows: list[dict[str, str]]) -> Rates:
    found: dict[tuple, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if rate(row) is not None:
            found[row["section"], row["model"], row["precision"]][row["contender"]].append(rate(row))
    return {key: {name: median(values) for name, values in of.items()} for key, of in found.items()}


def ratios(rates: Rates) -> str:
    """One row per rival and precision, one column per model, with the target where there is one."""
    lines = ["| against | precision | " + " | ".join(TITLES[model] for model in MODELS) + " |", "|---" * (2 + len(MODELS)) + "|"]
    for rival, name in NAMES.items():
        for precision in ("fp32", "tf32", *HALVES):
            cells = [against(rates, rival, model, precision) for model in MODELS]
            if any(cell != "–" for cell in cells):
                lines.append(f"| {name} | {precision} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def against(rates: Rates, rival: str, model: str, precision: str) -> str:
    here = rates.get(("rivals" if precision in HALVES else "plain", model, precision), {})
    if "mpx" not in here or rival not in here:
        return "–"
    least = TARGETS.get(rival, {}).get(model, 1.0 if rival == "loop" else None)
    return judged(here["mpx"] / here[rival], least)


def judged(ratio: float, least: float | None) -> str:
    if least is None:
        return f"{ratio:.2f}"
    return f"**{ratio:.2f}** (≥ {least:g})" if ratio >= least else f"{ratio:.2f} (≥ {least:g})"


def all_rates(rates: Rates) -> str:
    lines = ["| model | precision | contender | samples/s |", "|---|---|---|---|"]
    for (section, model, precision), of in in_order(rates):
        if section in ("rivals", "plain", "ways"):
            lines += [f"| {TITLES[model]} | {precision} | {name} | {value:,.0f} |" for name, value in of.items()]
    return "\n".join(lines)


def in_order(rates: Rates) -> list[tuple[tuple[str, str, str], dict[str, float]]]:
    """By section, then model, whatever the order in which they were measured."""
    sections = ("rivals", "plain", "ways", *PAIRS)
    return sorted(rates.items(), key=lambda item: (sections.index(item[0][0]), MODELS.index(item[0][1])))


def by_hand(rates: Rates) -> list[str]:
    """Of each model and precision, how much faster than speed=auto its fastest way is that was set by hand."""
    lines = []
    for (section, model, precision), of in rates.items():
        auto = of.get("mpx, auto", of.get("mpx"))
        set_by_hand = {name: value for name, value in of.items() if name.startswith("mpx, ") and name != "mpx, auto"}
        if section in ("rivals", "ways") and auto and set_by_hand:
            best = max(set_by_hand, key=set_by_hand.get)
            question = f"the fastest way set by hand ({best.removeprefix('mpx, ')}) against speed=auto"
            lines.append(f"| {question} | {TITLES[model]} | {precision} | {set_by_hand[best] / auto:.2f} |")
    return lines


def within(rates: Rates) -> str:
    lines = ["| question | model | precision | ratio |", "|---|---|---|---|"]
    for (section, model, precision), of in in_order(rates):
        if section in PAIRS:
            who, whom, least, question = PAIRS[section]
            if who in of and whom in of:
                lines.append(f"| {question} | {TITLES[model]} | {precision} | {judged(of[who] / of[whom], least)} |")
    return "\n".join(lines + whole_runs(rates) + by_hand(rates))


def whole_runs(rates: Rates) -> list[str]:
    lines = []
    for (section, model, precision), of in rates.items():
        for rival, name in NAMES.items():
            if section == "whole" and rival in of and "whole run" in of:
                lines.append(f"| a whole run against one of {name} | {TITLES[model]} | {precision} | {of['whole run'] / of[rival]:.2f} |")
    return lines
