"""Turn the runs of run.sh into results.csv, and results.csv into the tables of README.md.

$ python experiments/every_setting/collect.py outputs   # reads outputs/every_*/**/result.json, writes results.csv and README.md
$ python experiments/every_setting/collect.py           # README.md from the committed results.csv
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import collect, markdown, ran_on, records

HERE = Path(__file__).parent
COLUMNS = (
    "study", "model", "data", "precision", "sparsity", "seed", "status", "test_accuracy", "max_epochs", "batch_size", "emulated",
    "train_samples_per_s", "step_ms_p50", "peak_allocated_gib", "exclusive", "skipped_steps", "verified", "density",
)  # fmt: skip
PRECISIONS, SPARSITIES = ("fp32", "tf32", "amp", "amp_bf16"), ("dense", "2of4")
CARD = """# Does every setting train?

**Question.** Does every precision mode, dense and pruned to 2:4, train every model family without error? How accurate, and how fast?

**Setup.** {setup}.
Digits: the tuned tasks as shipped, mean of two seeds. Real data sets: the tuned tasks shortened to two epochs, one seed. They show whether
a setting trains, not how far it gets: so early, the accuracy varies by several points from run to run, so columns must not be compared.
Several runs shared the GPU for the accuracies. Throughput comes from separate runs of 150 steps that had the device to themselves.

**Command.** `experiments/every_setting/run.sh digits`, `… real DATA_DIR`, `… speed DATA_DIR`, then
`python experiments/every_setting/collect.py outputs`.

## Test accuracy

{accuracy}

## Training throughput, samples/s

{speed}

**What we learnt.** PyTorch's autocast runs cuDNN RNNs in FP16 even if it was asked for BF16, so a "BF16" LSTM had FP16's range and no
loss scaling. mpx casts them itself (`mpx/precision/rnn.py`); `precision.observed` in each record shows it. In every run the observed
formats are those that the mode promises (`tests/gpu`).

**Trade-off and limits.** {limits}
"""


def read(outputs: Path) -> list[dict]:
    parts = ("speed", "memory", "precision", "sparsity")
    return [{key: value for part in parts for key, value in record[part].items()} | flat for record, flat in records(outputs, "every_*")]


def table(rows: list[dict], column: str, spec: str) -> str:
    """Markdown: one row per model and data set, one column per precision and sparsity."""
    found = defaultdict(list)
    for row in rows:
        found[row["model"], row["data"], row["precision"], row["sparsity"]].append(float(row[column]) if row[column] else float("nan"))
    settings = [(precision, sparsity) for precision in PRECISIONS for sparsity in SPARSITIES]
    cases = sorted({key[:2] for key in found}, key=lambda pair: (pair[1] != "digits", pair))
    lines = []
    for case in cases:
        cells = [format(mean(values), spec) if (values := found.get((*case, *setting))) else "–" for setting in settings]
        lines.append([*case, *cells])
    return markdown(["model", "data", *map(" ".join, settings)], lines)


def card(rows: list[dict]) -> str:
    failed = [row for row in rows if row["status"] != "completed"]
    alone = [row for row in rows if row["study"] == "every_speed"]
    limits = f"{len(rows) - len(failed)} of {len(rows)} runs completed"
    limits += f"; every 2:4 run verified: {all(row['verified'] == 'True' for row in rows if row['sparsity'] == '2of4')}"
    limits += f"; {sum(row['exclusive'] == 'True' for row in alone)} of {len(alone)} speed runs had the device to themselves. " + NOTES
    return CARD.format(
        setup=ran_on(rows),
        accuracy=table([row for row in rows if row["study"] != "every_speed"], "test_accuracy", ".4f"),
        speed=table(alone, "train_samples_per_s", ",.0f"),
        limits=limits,
    )


NOTES = (
    "Masked 2:4 models train at 0.93 to 1.08 times dense speed, by one run each. The step is neither compiled nor captured in a CUDA "
    "graph here, so launch overhead hides part of the gain of the faster formats."
)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(collect(HERE, COLUMNS, read)))
