"""Write the tables of README.md from results.csv.

$ python experiments/recipe/card.py
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, line, put_between, read, spread

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
        lines.append(line([f"`{change}`" if change else "none", len(found), spread(found), f"{mean(found) - base:+.2f}"]))
    whole = [row for row in rows if row["none"]]
    views = ", ".join(f"`{name}` {mean(float(row[name]) for row in whole):.2f}" for name in VIEWS)
    return "\n".join(lines) + f"\n\nMean over the {len(whole)} runs of which all were taken, by `data.tta`: {views} %."


def main() -> None:
    Arguments().parse_args()
    put_between(MARK, END, tables(read(FOLDER / "results.csv")), FOLDER / "README.md")


if __name__ == "__main__":
    main()
