"""Turn the runs of run.sh into results.csv, and results.csv into README.md.

$ python experiments/sparsity_pilot/collect.py outputs   # reads outputs/sparsity_pilot/**/result.json
$ python experiments/sparsity_pilot/collect.py           # README.md from the committed results.csv
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import COMMON, collect, completed, percent, ran_on, records, spread

HERE = Path(__file__).parent
COLUMNS = (*COMMON, "recipe", "start", "permute", "verified", "density", "kept_magnitude", "permutation_seconds")
SETTINGS = {  # (pattern, recipe, start, permute): how its row is called
    ("2of4", "asp", "0.5", "False"): "2:4, asp",
    ("2of4", "asp", "0.5", "True"): "2:4, asp, channels permuted",
    ("2of4", "one_shot", "0.5", "False"): "2:4, one_shot",
    ("2of4", "one_shot", "0.5", "True"): "2:4, one_shot, channels permuted",
    ("2of4", "sr_ste", "0.0", "False"): "2:4, sr_ste from the first step",
    ("2of4", "sr_ste", "0.5", "False"): "2:4, sr_ste after a dense half",
    ("2of4", "sr_ste", "0.5", "True"): "2:4, sr_ste after a dense half, channels permuted",
    ("2of4_2d", "asp", "0.5", ""): "2:4 both ways, asp",
    ("unstructured", "asp", "0.5", ""): "half of each layer, asp",
}
CARD = """# What does pruning cost a small network?

**Question.** ResNet-20 on CIFAR-10: how far from dense is 2:4, by which recipe, and does permuting the channels first help?

**Setup.** {setup}. {task}, {epochs} epochs in every run, dense phases included, SGD with a cosine schedule as tuned, precision `tf32`;
several runs at once on the GPU, so no speed is compared. {completed}. Test accuracy in percent, mean ± standard deviation over seeds.

| recipe | of the {epochs} epochs | schedule |
|---|---|---|
| dense | all | one cosine |
| asp | half dense, half with fixed masks | a cosine for each half |
| one_shot | all dense, pruned at the end | one cosine |
| sr_ste | masks move at every step, from the first step on or in the second half | one cosine |

**Command.** `experiments/sparsity_pilot/run.sh DATA_DIR`, then `python experiments/sparsity_pilot/collect.py outputs`

| ResNet-20, CIFAR-10 | seeds | dense → pruned | change, points | density | magnitude kept |
|---|---|---|---|---|---|
{rows}

For comparison, as published (arXiv:2104.08378), dense → 2:4, both trained in full: ResNet-50 76.1 → 76.2, ResNeXt-101 79.3 → 79.3.

**What we learnt.** {verdict}

**Trade-off and limits.** One network, few seeds and epochs: a pilot. With the same total, asp has half the epochs of the published recipe,
which doubles the training. Density is that of the pruned layers. Batch norm's statistics are not measured again after one_shot.

**Attribution.** asp: Mishra et al., arXiv:2104.08378; sr_ste: Zhou et al., arXiv:2102.04010; permutation: Pool and Yu, NeurIPS 2021.
"""


def read(outputs: Path) -> list[dict]:
    rows = []
    for record, flat in records(outputs, "sparsity_pilot"):
        asked, found = record["config"]["sparsity"], record["sparsity"]
        row = flat | {column: found.get(column) for column in ("recipe", "verified", "density", "kept_magnitude")}
        row |= {"recipe": asked.get("recipe"), "start": asked.get("start"), "permute": asked.get("permute")}
        rows.append(row | {"permutation_seconds": (found.get("permutation") or {}).get("seconds")})
    return rows


def line(name: str, rows: list[dict[str, str]], dense: list[float]) -> str:
    found = percent(rows)
    change = f"{mean(found) - mean(dense):+.2f}" if found else "–"
    shares = [mean(values) if (values := [float(row[key]) for row in rows if row[key]]) else None for key in ("density", "kept_magnitude")]
    density, kept = (f"{share:.{digits}f}" if share is not None else "–" for share, digits in zip(shares, (2, 3), strict=True))
    return f"| {name} | {len(found)} | {spread(dense)} → {spread(found)} | {change} | {density} | {kept} |"


def verdict(groups: dict[str, list[dict[str, str]]], dense: list[float]) -> str:
    """The order, and what permuting did, from the means; a difference below its own spread is said to be none."""
    means = {name: mean(percent(rows)) for name, rows in groups.items() if percent(rows)}
    order = "; ".join(f"{name} {means[name] - mean(dense):+.2f}" for name in sorted(means, key=means.get, reverse=True))
    text = f"Change against dense in points, from best to worst: {order}."
    for name in [name for name in means if f"{name}, channels permuted" in means]:
        pairs = percent(groups[f"{name}, channels permuted"]), percent(groups[name])
        gain, noise = mean(pairs[0]) - mean(pairs[1]), max(max(values) - min(values) for values in pairs)
        text += f" Permuting changes {name} by {gain:+.2f}" + (", less than its seeds differ." if abs(gain) < noise else ".")
    broken = [name for name, rows in groups.items() if any(row["verified"] != "True" for row in rows)]
    return text + (f" **Not verified: {', '.join(broken)}.**" if broken else " Every pruned run was verified.")


def card(rows: list[dict]) -> str:
    found = defaultdict(list)
    for row in rows:
        found[row["sparsity"], row["recipe"], row["start"], row["permute"]].append(row)
    groups = {name: found[key] for key, name in SETTINGS.items() if key in found}
    dense = percent([row for row in rows if row["sparsity"] == "dense"])
    return CARD.format(
        setup=ran_on(rows), task=f"{rows[0]['model']} on {rows[0]['data']}", epochs=rows[0]["max_epochs"], completed=completed(rows),
        rows="\n".join(line(name, several, dense) for name, several in groups.items()), verdict=verdict(groups, dense),
    )  # fmt: skip


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(collect(HERE, COLUMNS, read)))
