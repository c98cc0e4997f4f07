"""What do mpx's own parts cost? Whole runs that differ in one part take turns; a plain loop, and the time of
a command's first answer.

$ python experiments/costs/run.py masks  # writes results-masks.csv into $OUT, or here, and prints its medians
$ python experiments/costs/run.py numerics --rounds 5
$ python experiments/costs/run.py emulation            # on a CPU
$ python experiments/costs/run.py loop                 # on a CPU: the default job beside a plain PyTorch loop
$ python experiments/costs/run.py startup  # commands that train nothing, and a sweep's further job
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import ONLY_STEPS, Arguments, markdown, printed, read, train, write

HERE = Path(__file__).parent
COLUMNS = ("part", "model", "variant", "round", "samples_per_s", "step_ms_p50", "seconds", "exclusive")
IMAGE, TEXT = (
    "data=synthetic data.samples=4096",
    ("data=synthetic data.samples=4096 data.kind=text data.shape=[128] data.classes=2"),
)
GPU_MODELS = {
    "ResNet-18, 256×3×32×32": f"model=resnet18 {IMAGE} data.shape=[3,32,32] data.classes=10 "
    "data.batch_size=256",
    "ResNet-50, 64×3×224×224": f"model=resnet50 {IMAGE} data.shape=[3,224,224] data.classes=100 "
    "data.batch_size=64",
    "BERT-small, 64×128 tokens": f"model=bert_small {TEXT} data.batch_size=64",
    "LSTM 2×512, 256×128 tokens": f"model=lstm model.hidden_size=512 {TEXT} data.batch_size=256",
}
CPU_MODELS = {
    "ResNet-20, 64×1×8×8 (the default job)": "task=resnet20_digits",
    "LSTM, 64×8 rows of 8 pixels": "task=lstm_digits",
    "MLP, 64×64 pixels": "task=mlp_digits",
}
FEW = "trainer.max_steps=130 trainer.log_every_n_steps=50"
FORMATS = ("fp32", "tf32", "amp", "amp_bf16", "fp8")
# part -> models, and variant -> words; the first variant is what the others are compared with
PARTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "masks": (
        GPU_MODELS,
        {
            "dense": "precision=amp_bf16 speed=plain",
            "fixed": "precision=amp_bf16 speed=plain sparsity=2of4 sparsity.recipe=from_start",
            "sr_ste": "precision=amp_bf16 speed=plain sparsity=2of4 sparsity.recipe=sr_ste sparsity.start=0",
        },
    ),
    "numerics": (
        GPU_MODELS,
        {
            "off": "precision=amp speed=plain numerics.every=1000000000",
            "every step": "precision=amp speed=plain numerics.every=1",
        },
    ),
    "emulation": (CPU_MODELS, {name: f"precision={name} precision.emulate=always" for name in FORMATS}),
    "loop": ({"ResNet-20, 64×1×8×8": "task=resnet20_digits"}, {"plain loop": "", "mpx": "precision=fp32"}),
}
PARTS["emulation"][1]["fp32"] = "precision=fp32"
FIVE_STEPS = ["task=mlp_digits", "trainer.max_steps=5", "trainer.progress=off"]
COMMANDS = {
    "import hydra": ["-c", "import hydra"],
    "--help": ["-m", "mpx.train", "--help"],
    "unknown key": ["-m", "mpx.train", "optimizer.lrr=1"],
    "a run of five steps": ["-m", "mpx.train", *FIVE_STEPS],
    "a sweep of four such runs": ["-m", "mpx.train", "-m", "seed=range(4)", *FIVE_STEPS],
}


def plain_loop() -> dict[str, object]:
    """The default job as a loop of PyTorch alone, without augmentation, checks, logs and checkpoints."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn.functional import cross_entropy

    from mpx.models.resnet import CifarResNet

    digits = load_digits()
    x = torch.tensor(digits.images[:1280, None], dtype=torch.float32).div_(16)
    y = torch.tensor(digits.target[:1280])
    model = CifarResNet(3, 1, 10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    rates = []
    for _ in range(6):
        start = time.perf_counter()
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        rates.append(len(x) / (time.perf_counter() - start))
    return {"train_samples_per_s": median(rates[2:])}


def measured(part: str, rounds: int) -> Iterator[dict[str, object]]:
    """A row per model, variant and round; each round takes the variants in a new order."""
    models, variants = PARTS[part]
    for number in range(rounds):
        for model, words in models.items():
            for variant in random.Random(number).sample(list(variants), len(variants)):
                settings = f"{words} {variants[variant]} seed={number} {FEW}".split()
                plain = variant == "plain loop"
                speed = plain_loop() if plain else train([*settings, *ONLY_STEPS])["speed"]
                about = {"part": part, "model": model, "variant": variant, "round": number}
                yield about | speed | {"samples_per_s": speed["train_samples_per_s"]}


def started(rounds: int) -> Iterator[dict[str, object]]:
    for number in range(rounds):
        for name, words in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                subprocess.run([sys.executable, *words], cwd=folder, capture_output=True)
                seconds = time.perf_counter() - start
                yield {"part": "startup", "variant": name, "round": number, "seconds": seconds}


def medians(rows: list[dict[str, str]]) -> str:
    value = "seconds" if rows[0]["seconds"] else "samples_per_s"
    cases: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        cases.setdefault((row["model"], row["variant"]), []).append(float(row[value]))
    lines = [[*case, f"{median(each):,.2f}"] for case, each in cases.items()]
    return markdown(["model", "variant", f"{value}, median"], lines)


def main() -> None:
    parser = Arguments()
    parser.add_argument("part", choices=[*PARTS, "startup"])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    path = Path(os.environ.get("OUT") or HERE) / f"results-{given.part}.csv"
    rows = started(given.rounds) if given.part == "startup" else measured(given.part, given.rounds)
    write(path, COLUMNS, printed(rows, COLUMNS))
    print(medians(read(path)))


if __name__ == "__main__":
    main()
