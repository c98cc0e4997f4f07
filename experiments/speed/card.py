"""README.md of this experiment, from its results.csv alone."""

import csv
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from setups import MODELS, TITLES

HALVES, RESNETS = ("amp", "amp_bf16"), ("resnet18", "resnet50")
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
CARD = """# How fast does mpx train?

**Question.** Does mpx reach what the device can do, with its logging, metrics and checkpoints on: beside a loop tuned by hand, and beside
other trainers as they come?

**Setup.** {setup}. ResNet-50 256×224², ResNet-18 with a 3×3 stem 512×32², BERT-small (4 layers of 512) 256×128 tokens, LSTM 2×512
256×128 tokens; random inputs on the device. All of one model and precision take turns ({rounds}); medians. mpx runs through
`python -m mpx.train speed=auto`, told to choose as for a long run. By hand: torchvision, transformers and nn.LSTM as they are, autocast and
GradScaler, fused optimizer, channels_last, torch.compile (default for ResNet-50, reduce-overhead for ResNet-18 and BERT-small).
Higher is better; a target that is met is in bold.

**Command.** `python experiments/speed/run.py`, then `python experiments/speed/run.py --card`

## mpx ÷ the other, samples/s

{ratios}

## Samples/s

{rates}

## Within mpx

{within}
{rest}{failed}
**Trade-off and limits.** One card. A call of the machine is too short for everything: sections were measured in calls of their own, with
mpx as it was then, and joined, the newest of each measurement counting. Rivals ran their steps alone: the whole run is mpx's, against
its own steps.{layout}
"""

Rates = dict[tuple[str, str, str], dict[str, float]]  # (section, model, precision) -> contender -> median


def write_card(folder: Path, parts: list[Path]) -> str:
    """parts: tables to join to folder/results.csv first, the newest of a measurement counting. Returns the card."""
    path = folder / "results.csv"
    if parts:
        join(parts, path)
    if not path.exists():
        sys.exit("error: there is no results.csv here yet. Measure first, or name the files that hold parts of it: --card a.csv b.csv")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    text = card(rows)
    (folder / "README.md").write_text(text)
    return text


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


def card(rows: list[dict[str, str]]) -> str:
    rates = medians(rows)
    about = "; ".join(sorted({f"{row['device']}, torch {row['torch']}" for row in rows}))
    turns = Counter((row["section"], row["model"], row["precision"], row["contender"]) for row in rows).values()
    rounds = f"{min(turns)} to {max(turns)} rounds" if min(turns) < max(turns) else f"{max(turns)} rounds"
    failed = sorted({f"- {TITLES[row['model']]}, {row['precision']}, {row['contender']}: {row['note']}" for row in rows if not rate(row)})
    failed = "\n## Not measured\n\n" + "\n".join(failed) + "\n" if failed else ""
    tables = {"ratios": ratios(rates), "rates": all_rates(rates), "within": within(rates), "layout": channel_by_channel(rows)}
    return CARD.format(setup=about, rounds=rounds, **tables, rest=where_the_rest_went(rows), failed=failed)


def where_the_rest_went(rows: list[dict[str, str]]) -> str:
    """Each whole run's seconds by what they were for, as its note has them; the first run of a process also loads libraries."""
    lines = [
        f"- {TITLES[row['model']]}, {row['precision']}, run {int(row['round']) + 1}: {row['note']}"
        for row in rows
        if (row["section"], row["contender"]) == ("whole", "whole run") and rate(row)
    ]
    return "\nWhole runs:\n\n" + "\n".join(lines) + "\n" if lines else ""


def channel_by_channel(rows: list[dict[str, str]]) -> str:
    """Which ResNets mpx did not lay out channels_last, as its notes have it; the choice has changed since the first measurements."""
    notes = [(row, json.loads(row["note"])) for row in rows if row["note"].startswith("{")]
    found = {
        f"{TITLES[row['model']]} in {row['precision']}"
        for row, note in notes
        if row["model"] in RESNETS and note.get("channels_last") is False
    }
    return f" Laid out channel by channel, not channels_last: {', '.join(sorted(found))}." if found else ""


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
    for (section, model, precision), of in rates.items():
        if section in ("rivals", "plain", "ways"):
            lines += [f"| {TITLES[model]} | {precision} | {name} | {value:,.0f} |" for name, value in of.items()]
    return "\n".join(lines)


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
    for (section, model, precision), of in rates.items():
        if section in PAIRS:
            who, whom, least, question = PAIRS[section]
            if who in of and whom in of:
                lines.append(f"| {question} | {TITLES[model]} | {precision} | {judged(of[who] / of[whom], least)} |")
    return "\n".join(lines + by_hand(rates))
