"""Audit one training step of every model in every mode: which format, which kernels, Tensor Cores or not.

$ python experiments/audit/run.py  # on a CUDA device: writes operations.csv and README.md (about 3 minutes)
$ python experiments/audit/run.py --card     # README.md from the committed operations.csv
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from collecting import experiment, markdown, said, train

HERE = Path(__file__).parent
TEXT = "data=synthetic data.kind=text data.shape=[128] data.classes=2 data.batch_size=64 data.samples=1024"
IMAGES = "data=synthetic data.shape=[3,32,32] data.classes=10 data.batch_size=256 data.samples=1024"
MODELS = {
    "ResNet-18, 256×3×32×32": f"model=resnet18 {IMAGES}",
    "BERT-small, 64×128 tokens": f"model=bert_small {TEXT}",
    "LSTM 2×512, 64×128 tokens": f"model=lstm model.hidden_size=512 {TEXT}",
}
MODES = ("fp32", "tf32", "amp", "amp_bf16", "fp16_true", "bf16_true", "fp8", "o0", "o1", "o2", "o3")
SHORT = (
    "trainer.max_steps=2 trainer.limit_val_batches=1 trainer.limit_test_batches=1 "
    "numerics.every=1000 audit=true precision.strict=false"
)
KINDS = ("linear", "matmul", "conv", "rnn", "bmm", "attention")
COLUMNS = (
    "model", "mode", "kind", "name", "calls", "flops", "inputs", "fmt", "accumulator", "output",
    "tensor_cores", "promised", "kernels",
    "cudnn",
)  # fmt: skip


def measure() -> Iterator[dict]:
    from mpx.precision.audit import Operation
    from mpx.precision.modes import MODES as TABLE

    for (model, choice), mode in product(MODELS.items(), MODES):
        record = train(f"{choice} precision={mode} {SHORT}".split())
        about = {"model": model, "mode": mode, "cudnn": record["environment"]["cudnn"]}
        for row in record["precision"]["audit"]["operations"]:
            promised = Operation(**row).keeps(TABLE[mode])
            yield row | about | {"promised": promised, "kernels": " | ".join(row["kernels"])}


def table(rows: list[dict]) -> str:
    total, kept, cores = defaultdict(int), defaultdict(int), defaultdict(int)
    for row in rows:
        key = row["model"], row["mode"], row["kind"]
        total[key] += int(row["flops"])
        kept[key] += int(row["flops"]) * (str(row["promised"]) == "True")
        cores[key] += int(row["flops"]) * (str(row["tensor_cores"]) == "True")
    lines = [
        [model, mode, *(_cell((model, mode, kind), total, kept, cores) for kind in KINDS)]
        for model, mode in product(MODELS, MODES)
    ]
    return markdown(["model", "mode", *KINDS], lines)


def _cell(key: tuple, total: dict, kept: dict, cores: dict) -> str:
    if not total[key]:
        return "–"
    return f"{kept[key] / total[key]:.2%} (TC {cores[key] / total[key]:.2%})"


def exceptions(rows: list[dict]) -> str:
    broken = [row for row in rows if str(row["promised"]) != "True"]
    if not broken:
        return "No operation ran in another format than its mode promises."
    lines = [
        f"- {r['model']}, {r['mode']}: {r['calls']} × `{r['name']}` in {r['fmt']} "
        f"(`{r['kernels'].split(' | ')[0][:90]}`)"
        for r in broken
    ]
    return "\n".join(["Operations in another format than promised:", "", *lines])


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    setup = said(rows, "{device}, torch {torch}, cuDNN {cudnn}, driver {driver}")
    return {"table": f"{setup}.\n\n{table(rows)}\n\n{exceptions(rows)}"}


if __name__ == "__main__":
    experiment(HERE, COLUMNS, lambda _: measure(), card, file="operations.csv")
