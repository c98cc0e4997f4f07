"""What does enforcing the masks cost? Training steps with and without masks, in turn.

$ python experiments/masked_step/run.py           # writes results.csv and README.md (about two minutes on a GPU)
$ python experiments/masked_step/run.py --tiny    # a quick look at a tiny batch; writes nothing
"""

import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, markdown, write

from mpx.measure.environment import environment
from mpx.measure.timing import elapsed
from mpx.models import build
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM
from mpx.sparsity.recipes import Plan
from mpx.sparsity.sr_ste import SrSte
from mpx.spec import Spec
from mpx.train import CONF
from mpx.training.optimizer import build_optimizer

HERE = Path(__file__).parent
ROUNDS, SAMPLE_S, BOUND = 15, 0.5, 0.03
CASES = {  # model: (choice, one batch, its spec)
    "ResNet-50": (["model=resnet50", "data=synthetic"], (256, 3, 224, 224), Spec("image", (3, 224, 224), 1000)),
    "BERT-small": (["model=bert_small", "data=synthetic", "data.kind=text"], (256, 128), Spec("text", (128,), 2, 30522, 0)),
}
COLUMNS = ("model", "masks", "median_ms", "over_dense", "low", "high", "batch", "format", "rounds", "device", "torch")


class Training:
    """One model with its own optimizer and batch, stepped as in mpx: BF16 autocast, fused optimizer, channels_last."""

    def __init__(self, choice: list[str], shape: tuple[int, ...], spec: Spec, device: torch.device, masks: str):
        cfg = compose("train", choice)
        torch.manual_seed(0)
        self.model = build(cfg.model, spec).to(device)
        if device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(self.model, cfg.optimizer)
        self.x = torch.randn(shape, device=device) if spec.kind == "image" else torch.randint(1, spec.vocab_size, shape, device=device)
        self.y = torch.randint(spec.classes, shape[:1], device=device)
        self.recipe = SrSte(Plan(0, 0, None), decay=2e-4) if masks == "sr_ste" else None
        pattern = NofM(2, 4)
        self.masks = Masks(weights(self.model, pattern, Rules()), pattern, remember=self.recipe is not None)
        if self.recipe is not None:
            self.recipe.before_forward(0, self.masks, [self.optimizer])
        elif masks == "fixed":
            self.masks.prune([self.optimizer])

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.x.device.type, dtype=torch.bfloat16):
            loss = cross_entropy(self.model(self.x).float(), self.y)
        loss.backward()
        if self.recipe is not None:
            self.recipe.on_gradients(self.masks, self.optimizer)
        elif self.masks.active:
            self.masks.mask_gradients()
        self.optimizer.step()
        if self.recipe is not None:
            self.recipe.after_step(1, self.masks, [self.optimizer], None)


def measure(name: str, device: torch.device, *, tiny: bool) -> list[dict[str, object]]:
    choice, shape, spec = CASES[name]
    batch = (2, *shape[1:]) if tiny else shape
    trainings = {masks: Training(choice, batch, spec, device, masks) for masks in ("dense", "fixed", "sr_ste")}
    steps: dict[str, Callable[[], None]] = {masks: training.step for masks, training in trainings.items()}
    for step in steps.values():
        elapsed(step, device, 3)
    count = max(2, round(SAMPLE_S / (elapsed(steps["dense"], device, 3) / 3)))
    times: dict[str, list[float]] = {masks: [] for masks in steps}
    for round_ in range(2 if tiny else ROUNDS):
        for masks in random.Random(round_).sample(list(steps), len(steps)):
            times[masks].append(elapsed(steps[masks], device, count) / count * 1e3)
    return [row(name, masks, ms, times["dense"], batch, device) for masks, ms in times.items()]


def row(name: str, masks: str, ms: list[float], dense: list[float], batch: tuple[int, ...], device: torch.device) -> dict[str, object]:
    over = [mine / theirs - 1 for mine, theirs in zip(ms, dense, strict=True)]
    where = torch.cuda.get_device_name() if device.type == "cuda" else environment()["cpu"]
    figures = {"over_dense": statistics.median(over), "low": min(over), "high": max(over)}
    return (
        {"model": name, "masks": masks, "median_ms": f"{statistics.median(ms):.3f}"}
        | {key: f"{value:.4f}" for key, value in figures.items()}
        | {"batch": "x".join(map(str, batch)), "format": "bf16 autocast", "rounds": len(ms), "device": where, "torch": torch.__version__}
    )


def card(rows: list[dict[str, object]]) -> str:
    lines = []
    for r in rows:
        over, low, high = (f"{float(r[key]):+.1%}" for key in ("over_dense", "low", "high"))
        lines.append([f"{r['model']}, {r['batch']}", r["masks"], r["median_ms"], over, f"{low} to {high}"])
    table = markdown(["model", "masks", "ms a step", "over dense", "low to high"], lines)
    worst, highest = (max(float(r[key]) for r in rows if r["masks"] == "fixed") for key in ("over_dense", "high"))
    dense = {r["model"]: float(r["median_ms"]) for r in rows if r["masks"] == "dense"}
    by_times = max(float(r["median_ms"]) / dense[r["model"]] - 1 for r in rows if r["masks"] == "fixed")
    unsure = f" By the ratio of the medians it is up to {by_times:.1%}: the rounds scatter too much to show that the bound is held."
    return (
        "# What does enforcing the masks cost?\n\n"
        "**Question.** How much longer does a training step take if pruned weights are kept at zero?\n\n"
        f"**Setup.** {rows[0]['device']}, torch {rows[0]['torch']}, {rows[0]['format']}, fused optimizer, channels_last, eager mode; "
        f"random batches on the device. Each of {rows[0]['rounds']} rounds times all variants in a new order. "
        "The table shows medians, and the median of the rounds' ratios. Other programs ran on the host's other GPUs and cores, which "
        "delays launches: single rounds of BERT-small differ by a third.\n\n"
        "**Command.** `python experiments/masked_step/run.py`\n\n"
        f"{table}\n\n"
        f"**What we learnt.** Fixed masks (asp, from_start, gradual) cost {worst:.1%} or less in the median of the rounds, and up to "
        f"{highest:.1%} in single rounds; the bound on a GPU is {BOUND:.0%}.{unsure if by_times > BOUND else ''} "
        "sr_ste computes the masks at every step.\n"
    )


def main() -> None:
    parser = Arguments()
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        rows = [found for name in CASES for found in measure(name, device, tiny=tiny)]
    print(text := card(rows))
    if not tiny:
        write(HERE / "results.csv", COLUMNS, rows)
        (HERE / "README.md").write_text(text)


if __name__ == "__main__":
    main()
