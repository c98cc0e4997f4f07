"""Write the tables of README.md from results.csv.

$ python experiments/recipe/card.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

FOLDER = Path(__file__).parent
MARK, END = "<!-- measured -->", "<!-- end of measured -->"
VIEWS = ("none", "flip", "flip_shift")


def tables(rows: list[dict[str, str]]) -> str:
    by_change: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_change[row["change"]].append(float(row["flip_shift"]))
    base = mean(by_change[""])
    lines = ["| change | seeds | test accuracy, % | difference |", "|---|---:|---:|---:|"]
    for change, found in sorted(by_change.items(), key=lambda item: -mean(item[1])):
        name = f"`{change}`" if change else "none"
        lines.append(f"| {name} | {len(found)} | {mean(found):.2f} ± {stdev(found):.2f} | {mean(found) - base:+.2f} |")
    whole = [row for row in rows if row["none"]]
    views = ", ".join(f"`{name}` {mean(float(row[name]) for row in whole):.2f}" for name in VIEWS)
    return "\n".join(lines) + f"\n\nMean over the {len(whole)} runs of which all were taken, by `data.tta`: {views} %."


def main() -> None:
    with open(FOLDER / "results.csv", newline="") as file:
        text = tables(list(csv.DictReader(file)))
    card = FOLDER / "README.md"
    before, _, rest = card.read_text().partition(MARK)
    card.write_text(f"{before}{MARK}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    print(text)


if __name__ == "__main__":
    main()
