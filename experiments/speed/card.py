"""What stands between the marks in README.md, from results.csv alone."""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from setups import MODELS, TITLES

sys.path.append(str(Path(__file__).parents[1]))
from collecting import ORIGIN, markdown, put_between, read, write

HALVES = ("amp", "amp_bf16")
TARGETS = {  # from the project's goals: at least so many times as fast
    "hand": {"resnet50": 1.03, "resnet18": 1.03, "bert_small": 1.05, "lstm": 1.0},
    "lightning": {"resnet50": 2.2, "resnet18": 2.8, "bert_small": 1.4, "lstm": 1.1},
}
NAMES = {
    "hand": "loop tuned by hand", "hand, types looked up": "the same, token types looked up",
    "hand, not compiled": "loop tuned by hand, not compiled", "loop": "plain eager loop", "lightning": "Lightning's defaults",
    "lightning, tuned": "Lightning, tuned", "transformers": "transformers' Trainer", "transformers, tuned": "transformers' Trainer, tuned",
    "timm": "timm's step",
}  # fmt: skip
PAIRS = {  # section: (who, against whom, at least, the question)
    "sparse": ("2of4", "dense", 0.97, "masked 2:4 against dense"),
    "numerics": ("on", "off", 0.98, "looking at gradients (the default) against not"),
    "whole": ("whole run", "its steps", 0.9, "a whole run with evaluation, logging and checkpoints against its own steps"),
}
MARK, END = "<!-- measured -->", "<!-- end of measured -->"
RESULTS = """Higher is better; a target that is met is in bold. Where and when each part was measured stands [below](#origin).

## mpx ÷ the other, samples/s

{ratios}

## Samples/s

Median, and lowest to highest, of the rounds.

{rates}

## Within mpx

{within}
{rest}
## Origin

{origin}
{failed}"""
FIRST = "BERT's last layer for the first token alone (`model.pool=first`, mpx's default) against the whole layer"
NOT_RECORDED = "not recorded"

Key = tuple[str, str, str]  # section, model, precision
Found, Rates = dict[Key, dict[str, list[float]]], dict[Key, dict[str, float]]  # samples/s by contender: of each round, the median


def write_card(folder: Path, parts: list[Path]) -> str:
    """parts: measurements to add to folder/results.csv first. Returns what was written."""
    path = folder / "results.csv"
    if parts:
        rows = join([*([path] if path.exists() else []), *parts])
        write(path, list(rows[0]), rows)
    if not path.exists():
        sys.exit("error: there is no results.csv here yet. Measure first, or name the files that hold parts of it: --card a.csv b.csv")
    part = results(read(path))
    put_between(MARK, END, part, folder / "README.md")
    return part


def join(parts: list[Path]) -> list[dict[str, str]]:
    """The rows of all parts. A section that a later host or commit measured is not mixed with earlier rows, which are rejected."""
    rows = [row | {name: row.get(name, "") for name in ("rejected", *ORIGIN)} for part in parts for row in read(part)]
    alike = {frozenset((row | {"rejected": ""}).items()): row for row in reversed(rows)}  # a part may have been added before
    rows = list(reversed(alike.values()))
    newest: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["time"] >= newest.get(row["section"], row)["time"]:
            newest[row["section"]] = row
    for row in rows:
        if not row["rejected"] and not same_call(row, newest[row["section"]]):
            row["rejected"] = f"measured again at {newest[row['section']]['time'] or NOT_RECORDED}"
    return rows


def same_call(one: dict[str, str], other: dict[str, str]) -> bool:
    return all(one[name] == other[name] for name in ORIGIN if name != "time")


def results(rows: list[dict[str, str]]) -> str:
    """rows: as results.csv has them. Those that are rejected are counted, with the reason, and enter no table."""
    counted = [row for row in rows if not row.get("rejected")]
    found = by_contender(counted)
    rates = {key: {name: median(values) for name, values in of.items()} for key, of in found.items()}
    tables = {"ratios": ratios(rates), "rates": all_rates(found), "within": within(rates)}
    return RESULTS.format(**tables, rest=where_the_rest_went(counted), origin=origins(counted), failed=left_out(rows))


def origins(rows: list[dict[str, str]]) -> str:
    """A line per section: where, when and of which commit its rows are."""
    lines = []
    for section in dict.fromkeys(row["section"] for row in rows):
        mine = [row for row in rows if row["section"] == section]
        one = {name: " + ".join(sorted({row.get(name) or NOT_RECORDED for row in mine})) for name in ORIGIN if name != "time"}
        times = sorted(row.get("time") or NOT_RECORDED for row in mine)
        turns = Counter((row["model"], row["precision"], row["contender"]) for row in mine).values()
        rounds = f"{min(turns)} to {max(turns)}" if min(turns) < max(turns) else f"{max(turns)}"
        when = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
        software = f"{one['torch']}, {one['driver']}"
        lines.append([section, one["device"], software, one["host"], short(one["commit"]), when, rounds])
    return markdown(["section", "device", "torch, driver", "host", "commit", "time (UTC)", "rounds"], lines)


def short(commit: str) -> str:
    """Twelve digits; that it had changes stays."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", commit)


def left_out(rows: list[dict[str, str]]) -> str:
    """What was not measured, and what was and does not count."""
    failed = [f"- {TITLES[row['model']]}, {row['precision']}, {row['contender']}: {row['note']}" for row in rows if not rate(row)]
    reasons = Counter((row["section"], row["rejected"]) for row in rows if row.get("rejected"))
    rejected = [f"- {count} of {section}: {reason}" for (section, reason), count in reasons.items()]
    parts = [("Not measured", sorted(set(failed))), ("Measured and rejected", rejected)]
    return "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts if lines)


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


def by_contender(rows: list[dict[str, str]]) -> Found:
    found: Found = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if rate(row) is not None:
            found[row["section"], row["model"], row["precision"]][row["contender"]].append(rate(row))
    return found


def ratios(rates: Rates) -> str:
    """One row per rival and precision, one column per model, with the target where there is one."""
    lines = []
    for rival, name in NAMES.items():
        for precision in ("fp32", "tf32", *HALVES):
            cells = [against(rates, rival, model, precision) for model in MODELS]
            if any(cell != "–" for cell in cells):
                lines.append([name, precision, *cells])
    return markdown(["against", "precision", *(TITLES[model] for model in MODELS)], lines)


def against(rates: Rates, rival: str, model: str, precision: str) -> str:
    here = rates.get(("rivals" if precision in HALVES else "plain", model, precision), {})
    if "mpx" not in here or rival not in here:
        return "–"
    least = TARGETS.get(rival, {}).get(model, 1.0 if rival == "loop" else None)
    return judged(here["mpx"] / here[rival], least)


def judged(ratio: float, least: float | None) -> str:
    shown = f"{ratio:.2f}"
    if any(bound is not None and ratio < bound <= float(shown) for bound in (1, least)):  # rounding would hide who is faster, or a miss
        shown = f"{ratio:.3f}"
    if least is None:
        return shown
    return f"**{shown}** (≥ {least:g})" if ratio >= least else f"{shown} (≥ {least:g})"


def all_rates(found: Found) -> str:
    lines = []
    for (section, model, precision), of in in_order(found):
        if section in ("rivals", "plain", "ways"):
            lines += [
                [TITLES[model], precision, name, f"{median(values):,.0f}", f"{min(values):,.0f} to {max(values):,.0f}"]
                for name, values in of.items()
            ]
    return markdown(["model", "precision", "contender", "samples/s", ""], lines)


def in_order(rates: dict[Key, Any]) -> list[tuple[Key, Any]]:
    """By section, then model, whatever the order in which they were measured."""
    sections = ("rivals", "plain", "ways", *PAIRS)
    return sorted(rates.items(), key=lambda item: (sections.index(item[0][0]), MODELS.index(item[0][1])))


def by_hand(rates: Rates) -> list[list[str]]:
    """Of each model and precision, how much faster than speed=auto its fastest way is that was set by hand."""
    lines = []
    for (section, model, precision), of in rates.items():
        auto = of.get("mpx, auto")
        set_by_hand = {name: value for name, value in of.items() if name.startswith("mpx, ") and name != "mpx, auto"}
        if section == "ways" and auto and set_by_hand:
            best = max(set_by_hand, key=set_by_hand.get)
            question = f"the fastest way set by hand ({best.removeprefix('mpx, ')}) against speed=auto"
            lines.append([question, TITLES[model], precision, f"{set_by_hand[best] / auto:.2f}"])
    return lines


def within(rates: Rates) -> str:
    lines = []
    for (section, model, precision), of in in_order(rates):
        if section in PAIRS:
            who, whom, least, question = PAIRS[section]
            if who in of and whom in of:
                lines.append([question, TITLES[model], precision, judged(of[who] / of[whom], least)])
        if "mpx, pool=first" in of and "mpx" in of:
            lines.append([FIRST, TITLES[model], precision, f"{of['mpx, pool=first'] / of['mpx']:.2f}"])
    return markdown(["question", "model", "precision", "ratio"], lines + whole_runs(rates) + by_hand(rates))


def whole_runs(rates: Rates) -> list[list[str]]:
    lines = []
    for (section, model, precision), of in rates.items():
        for rival, name in NAMES.items():
            if section == "whole" and rival in of and "whole run" in of:
                lines.append([f"a whole run against one of {name}", TITLES[model], precision, f"{of['whole run'] / of[rival]:.2f}"])
    return lines
