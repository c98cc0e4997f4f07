"""Collect the runs of run.sh into results.csv, and generate README.md from it.

$ python experiments/digits_2of4/collect.py outputs   # reads outputs/digits_2of4/**/result.json
$ python experiments/digits_2of4/collect.py           # README.md from the committed results.csv
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import COMMON, collect, completed, line, percent, ran_on, records, spread

from mpx.compare.comparison import METRICS
from mpx.compare.statistics import examine

HERE = Path(__file__).parent
COLUMNS = (*COMMON, "recipe", "verified", "density", "kept_magnitude")
BOUND, CONFIDENCE = 1.0, 0.95  # points of accuracy that 2of4 may lose
CARD = """# Is 2of4 within one point of dense?

**Question.** On the handwritten digits, does each of three models, pruned to 2 of 4, reach its dense accuracy within {bound:g} point?

**Setup.** {setup}. The shipped tuned tasks with precision `amp`. The shipped `2of4` trains dense for half of the epochs, prunes, and
fine-tunes for the other half. Dense runs train for the same number of epochs. {completed}. Test accuracy is in percent, mean ± standard
deviation over seeds. The test set has 360 images, so one image is 0.28 points. The interval and the decision are those of `mpx.compare`,
with 95 % confidence: a paired test over the seeds.

**Command.** `experiments/digits_2of4/run.sh`, then `python experiments/digits_2of4/collect.py outputs`

| model | epochs | seeds | dense | 2of4 | change, points | interval | magnitude kept | within {bound:g} point |
|---|---|---|---|---|---|---|---|---|
{rows}

**What we learnt.** {verdict}

**Trade-off and limits.** The data set is small and easy. Several runs shared the device, so speed is not compared.
"""


def read(outputs: Path) -> list[dict]:
    return [flat | record["sparsity"] | {"sparsity": flat["sparsity"]} for record, flat in records(outputs, "digits_2of4")]


def by_seed(rows: list[dict]) -> dict[int, float]:
    return {int(row["seed"]): percent([row])[0] / 100 for row in rows}


def card(rows: list[dict]) -> str:
    groups = defaultdict(list)
    for row in rows:
        groups[row["model"], row["sparsity"]].append(row)
    lines, decided = [], {}
    for model in sorted({model for model, _ in groups}):
        dense, sparse = groups[model, "dense"], groups[model, "2of4"]
        found = examine(by_seed(sparse), by_seed(dense), METRICS["test/accuracy"], BOUND / 100, CONFIDENCE)
        sound = all(row["status"] == "completed" and row["verified"] == "True" for row in sparse)
        decided[model] = (
            ("yes" if found.p_no_loss < 1 - CONFIDENCE else "no" if found.p_loss < 1 - CONFIDENCE else "undecided") if sound else "no"
        )
        kept = mean(float(row["kept_magnitude"]) for row in sparse if row["kept_magnitude"])
        seeds = f"{len(dense)}, {len(sparse)}" if len(dense) != len(sparse) else str(len(dense))
        cells = [model, dense[0]["max_epochs"], seeds, spread(percent(dense)), spread(percent(sparse)), f"{100 * found.difference:+.2f}"]
        cells += [f"{100 * found.low:+.2f} to {100 * found.high:+.2f}", f"{kept:.1%}", decided[model]]
        lines.append(line(cells))
    named = {word: ", ".join(model for model, found in decided.items() if found == word) for word in ("yes", "no", "undecided")}
    said = [f"Within {BOUND:g} point: {named['yes'] or 'none'}."]
    said += [f"**Not within it: {named['no']}.**"] if named["no"] else []
    said += [f"Not decided by so few seeds: {named['undecided']}."] if named["undecided"] else []
    verdict = " ".join(said)
    return CARD.format(bound=BOUND, setup=ran_on(rows), completed=completed(rows), rows="\n".join(lines), verdict=verdict)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(collect(HERE, COLUMNS, read)))
