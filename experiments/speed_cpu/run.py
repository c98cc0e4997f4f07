"""What does mpx cost beside a plain PyTorch loop on a CPU? ResNet-20 on the digits, the default job, in turn with a loop of 30 lines.

$ python experiments/speed_cpu/run.py            # writes results.csv and README.md (about 3 minutes)
$ python experiments/speed_cpu/run.py --card     # README.md from the committed results.csv
"""

import sys
import tempfile
import time
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import line, measured, said

HERE = Path(__file__).parent
EPOCHS, WARMUP, ROUNDS, BATCH, LIMIT = 6, 2, 5, 64, 1.1
PRECISIONS = ("fp32", "amp_bf16")
COLUMNS = ("precision", "contender", "round", "samples_per_s", "epoch_s", "cpu", "threads")
CARD = """# What does mpx cost beside a plain loop, on a CPU?

**Question.** Does an epoch of the default job, ResNet-20 on the digits, take at most {limit} × as long in mpx (with Lightning, logging,
metrics, checks and checkpoints) as in a plain PyTorch loop? And is native BF16 faster than FP32 on this CPU?

**Setup.** {setup}. The same model, data, batch size {batch}, random shifts, SGD with Nesterov momentum and validation after each
epoch, on both sides. {epochs} epochs a run, without the first {warmup}; {rounds} rounds in turn. *Steps*: samples per second while
training. *Epoch*: everything in an epoch, with validation and checkpoints.

**Command.** `python experiments/speed_cpu/run.py`

| precision | | steps, samples/s | epoch, s |
|---|---|---|---|
{rows}

**What we learnt.** {learnt}

**Trade-off and limits.** A small model with small batches, where everything except the arithmetic weighs most. The loop checks nothing,
logs nothing and saves nothing. It has the layout that `speed=auto` chooses for mpx, channels_last, in which this network is faster. Beside
a loop in PyTorch's layout, on this CPU, an epoch of mpx took 0.93 and 1.04 times as long (no committed row).
"""


def plain(precision: str, seed: int) -> dict[str, float]:
    import torch
    from torch.nn.functional import cross_entropy, pad

    from mpx.models.resnet import CifarResNet

    torch.manual_seed(seed)
    (x, y), (x_val, y_val) = digits()
    model = CifarResNet(3, 1, 10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "amp_bf16" else nullcontext()
    rates, epochs = [], []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        model.train()
        for rows in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            images, (down, right) = pad(x[rows], (1, 1, 1, 1)), torch.randint(0, 3, (2, BATCH))
            lines, columns = down[:, None] + torch.arange(8), right[:, None] + torch.arange(8)
            images = images[torch.arange(BATCH)[:, None, None], 0, lines[:, :, None], columns[:, None, :]][:, None]
            optimizer.zero_grad()
            with cast:
                loss = cross_entropy(model(images), y[rows])
            loss.backward()
            optimizer.step()
        rates.append(len(x) // BATCH * BATCH / (time.perf_counter() - start))
        model.eval()
        with torch.no_grad(), cast:
            (model(x_val).argmax(1) == y_val).float().mean().item()
        epochs.append(time.perf_counter() - start)
    return {"samples_per_s": median(rates[WARMUP:]), "epoch_s": median(epochs[WARMUP:])}


def digits():
    """(images [N, 1, 8, 8], labels) to train on and to validate with: as many as mpx takes."""
    import torch
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = torch.tensor(bunch.images[:, None], dtype=torch.float32).div_(16), torch.tensor(bunch.target)
    return (x[:1297], y[:1297]), (x[1297:1437], y[1297:1437])


def by_mpx(precision: str, seed: int) -> dict[str, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    import mpx

    with tempfile.TemporaryDirectory() as folder:
        few = ["trainer.accelerator=cpu", f"trainer.max_epochs={EPOCHS}", f"trainer.warmup_steps={20 * WARMUP}", f"data.batch_size={BATCH}"]
        with redirect_stdout(StringIO()):
            record = mpx.run([*few, f"precision={precision}", f"seed={seed}", f"output_dir={folder}", "trainer.progress=off"])
        ends = [event.wall_time for event in EventAccumulator(str(record.folder)).Reload().Scalars("val/accuracy")]
        epochs = [after - before for before, after in pairwise(ends)]
        return {"samples_per_s": record["speed"]["train_samples_per_s"], "epoch_s": median(epochs[WARMUP - 1 :])}


def measure() -> list[dict]:
    import torch

    from mpx.measure.environment import environment

    about = {"cpu": environment()["cpu"], "threads": torch.get_num_threads()}
    contenders, rows = {"plain loop": plain, "mpx": by_mpx}, []
    for number in range(ROUNDS):
        for precision in PRECISIONS:
            for name in list(contenders)[:: -1 if number % 2 else 1]:
                rows.append({"precision": precision, "contender": name, "round": number} | contenders[name](precision, number) | about)
                print({key: rows[-1][key] for key in COLUMNS[:5]}, flush=True)
    return rows


def card(rows: list[dict]) -> str:
    def middle(precision: str, contender: str, column: str) -> float:
        return median(float(row[column]) for row in rows if (row["precision"], row["contender"]) == (precision, contender))

    lines, epochs = [], []
    for precision in PRECISIONS:
        for name in ("plain loop", "mpx"):
            rate, epoch = middle(precision, name, "samples_per_s"), middle(precision, name, "epoch_s")
            lines.append(line([precision, name, f"{rate:,.0f}", f"{epoch:.3f}"]))
        pairs = [
            {row["contender"]: float(row["epoch_s"]) for row in rows if (row["precision"], row["round"]) == (precision, str(number))}
            for number in range(ROUNDS)
        ]
        epochs.append(median(pair["mpx"] / pair["plain loop"] for pair in pairs))
        lines.append(line([precision, "mpx ÷ plain loop, median of rounds", "", f"{epochs[-1]:.2f}"]))
    gain = middle("fp32", "mpx", "epoch_s") / middle("amp_bf16", "mpx", "epoch_s")
    mine, theirs = (1e3 * BATCH / middle("fp32", name, "samples_per_s") for name in ("mpx", "plain loop"))
    learnt = f"An epoch of mpx takes {epochs[0]:.2f} × the loop's in FP32 and {epochs[1]:.2f} × in BF16; the bound of {LIMIT} is "
    learnt += f"{'held' if max(epochs) <= LIMIT else 'missed'}. A step in FP32 takes {mine:.1f} ms, the loop's {theirs:.1f}. "
    learnt += f"Native BF16 is {gain:.2f} × as fast as FP32 here"
    learnt += ", so on this CPU it does not pay for so small a model." if gain < 1 else "."
    numbers = {"limit": LIMIT, "batch": BATCH, "epochs": EPOCHS, "warmup": WARMUP, "rounds": ROUNDS}
    return CARD.format(setup=said(rows, "{cpu}, {threads} threads, torch {torch}"), rows="\n".join(lines), learnt=learnt, **numbers)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(measured(HERE, COLUMNS, measure)))
