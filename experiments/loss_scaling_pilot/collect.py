"""Turn the runs of run.sh into results.csv, and results.csv into the table of README.md.

$ python experiments/loss_scaling_pilot/collect.py outputs   # reads outputs/loss_scaling_pilot/**/result.json
$ python experiments/loss_scaling_pilot/collect.py           # README.md from the committed results.csv
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import collect, ran_on, records

HERE = Path(__file__).parent
COLUMNS = (
    "setting", "seed", "status", "test_accuracy", "test_loss", "final_scale", "skipped_steps", "gradient_underflow_fraction",
    "gradient_underflow_unscaled_fraction", "gradient_overflow_fraction", "gradient_samples", "max_epochs",
)  # fmt: skip
CARD = """# What is loss scaling for?

**Question.** Of the gradients of a ResNet-18, how many vanish in FP16, how many does dynamic loss scaling save, and does accuracy suffer?

**Setup.** {setup}. ResNet-18 on Fashion-MNIST, the tuned task shortened to {epochs} epochs, three seeds. Several runs shared the GPU,
so speed is not compared. Shares are taken over the nonzero results of all products and convolutions of the backward pass, before they are
rounded, in the sampled steps. Tensors with more than a million values are sampled evenly over all channels.

**Command.** `experiments/loss_scaling_pilot/run.sh DATA_DIR`, then `python experiments/loss_scaling_pilot/collect.py outputs`

| setting | test accuracy | vanish in its format | would vanish in FP16 unscaled | overflow | final scale | skipped steps |
|---|---|---|---|---|---|---|
{rows}

**What we learnt.** In FP16 with a scale of 1, about one gradient in twelve becomes zero. Dynamic scaling reduces this to one in twenty
thousand; BF16, TF32 and FP32 lose none. The accuracy of this network does not suffer: the gradients that vanish are the smallest, and batch
norm and momentum carry the rest. The ranges of all five settings overlap. This network alone suggests that FP16 trains as well
without scaling; the underflow column warns that another network may not.

**Trade-off and limits.** One network, three seeds, {epochs} epochs: a pilot. The study `loss_scaling` has the grid over fixed scales,
and says how large tensors weigh in these shares.

**Attribution.** Micikevicius et al., Mixed Precision Training, arXiv:1710.03740.
"""


def read(outputs: Path) -> list[dict]:
    rows = []
    for record, flat in records(outputs, "loss_scaling_pilot"):
        precision, scale = record["precision"], record["precision"]["loss_scale"]
        fixed = scale is not None and not scale["dynamic"]
        row = precision | flat | {"setting": "FP16, scale 1" if fixed else precision["mode"]}
        rows.append(row | {"test_loss": record["metrics"]["test/loss"], "final_scale": scale["final"] if scale else None})
    return rows


def line(setting: str, rows: list[dict]) -> str:
    accuracy = [float(row["test_accuracy"]) for row in rows]
    shares = (mean(float(row[f"gradient_{name}_fraction"]) for row in rows) for name in ("underflow", "underflow_unscaled", "overflow"))
    scale = f"{float(rows[0]['final_scale']):g}" if rows[0]["final_scale"] else "–"
    skipped = sum(int(row["skipped_steps"]) for row in rows)
    cells = " | ".join(f"{share:.4%}" for share in shares)
    return f"| {setting} | {mean(accuracy):.4f} ± {stdev(accuracy):.4f} | {cells} | {scale} | {skipped} |"


def card(rows: list[dict]) -> str:
    groups = defaultdict(list)
    for row in rows:
        groups[row["setting"]].append(row)
    order = [name for name in ("fp32", "tf32", "amp", "FP16, scale 1", "amp_bf16") if name in groups]
    table = "\n".join(line(name, groups[name]) for name in order)
    return CARD.format(setup=ran_on(rows), epochs=rows[0]["max_epochs"], rows=table)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(collect(HERE, COLUMNS, read)))
