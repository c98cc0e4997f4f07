"""Write the table of README.md from results.csv.

$ python experiments/language_model/card.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, markdown, put_between, read

FOLDER = Path(__file__).parent
MARK, END = "<!-- measured -->", "<!-- end of measured -->"
HEADS = ("precision", "rows of the decoder", "compiled", "host", "ms per step", "samples/s", "peak GiB", "time to train, s")


def table(rows: list[dict[str, str]]) -> str:
    hosts = list(dict.fromkeys(row["host"] for row in rows))
    cells = []
    for row in rows:
        speed = [f"{float(row['step_ms']):.2f}", f"{float(row['samples_per_s']):,.0f}", f"{float(row['peak_gib']):.2f}"]
        where = [f"{int(row['rows']):,}", row["compiled"], "AB"[hosts.index(row["host"])]]
        cells.append([row["precision"].replace("_", r"\_"), *where, *speed, f"{float(row['time_to_train_s']):.1f}"])
    return markdown(HEADS, cells)


def main() -> None:
    Arguments().parse_args()
    put_between(MARK, END, table(read(FOLDER / "results.csv")), FOLDER / "README.md")


if __name__ == "__main__":
    main()
