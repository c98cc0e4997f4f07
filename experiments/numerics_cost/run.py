"""What looking at gradients costs: throughput with numerics at the default against none, run in turn, on the device alone.

$ python experiments/numerics_cost/run.py            # writes results.csv and README.md
$ python experiments/numerics_cost/run.py --card     # README.md from the committed results.csv
"""

import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import markdown, measured, said

HERE = Path(__file__).parent
STEPS, REPEATS, DEFAULT, NEVER = 130, 2, 200, 10**9
SYNTHETIC = ["data=synthetic", "data.samples=4096", "trainer.max_epochs=1000", f"trainer.max_steps={STEPS}", "trainer.limit_val_batches=1"]
SYNTHETIC += ["trainer.check_val_every_n_epoch=1000", "trainer.limit_test_batches=1", "trainer.progress=off"]
SYNTHETIC += ["trainer.log_every_n_steps=100"]
MODELS = {
    "ResNet-18, 256×3×32×32": ["model=resnet18", "data.shape=[3,32,32]", "data.classes=10", "data.batch_size=256"],
    "ResNet-50, 64×3×224×224": ["model=resnet50", "data.shape=[3,224,224]", "data.classes=100", "data.batch_size=64", "data.samples=512"],
    "BERT-small, 64×128 tokens": ["model=bert_small", "data.kind=text", "data.shape=[128]", "data.classes=2", "data.batch_size=64"],
    "LSTM 2×512, 256×128 tokens": ["model=lstm", "model.hidden_size=512", "data.kind=text", "data.shape=[128]", "data.classes=2",
                                   "data.batch_size=256"],
}  # fmt: skip
MODES = ("amp", "amp_bf16")
COLUMNS = ("model", "mode", "every", "repeat", "samples_per_s", "step_ms_p50", "exclusive")
CARD = """# What does looking at gradients cost?

**Question.** `numerics.every` counts vanishing and overflowing gradients in sampled steps. To do so it computes each product of the
backward pass a second time and leaves the result in FP32. Does this cost less than 2 % of the step time at the default?

**Setup.** {setup}. {steps} steps a run. Runs that sample every step and runs that sample none take turns, {repeats} times each; medians of
throughput. The cost of a sampled step beyond a plain one is spread over the {default} steps of the default. Plain steps are those of
`speed=plain`; other programs used the host's other GPUs and cores, which delays their launches. Where steps replay a CUDA graph, they are
shorter, a sampled one takes more of them, and the default is every 1,000.

**Command.** `python experiments/numerics_cost/run.py`

{table}

**What we learnt.** A sampled step takes as long as {least:.1f} to {most:.1f} plain ones. TF32 represents FP16 and BF16 operands exactly
and has FP32's exponents, so counting before the rounding needs no FP32 arithmetic. cuDNN's recurrent layers cannot be inspected and
cost nothing.

**Trade-off.** `numerics.every=1000` costs even less. `numerics.every=1` shows every step and slows training by that factor.
"""


def measure() -> list[dict]:
    import mpx

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model, choice in MODELS.items():
            for mode in MODES:
                for repeat in range(REPEATS):
                    for every in (1, NEVER):
                        few = [f"precision={mode}", "speed=plain", f"numerics.every={every}", f"seed={repeat}"]
                        record = mpx.run([*SYNTHETIC, *choice, *few, f"output_dir={folder}/{len(rows)}"])
                        rows.append(flat(model, mode, every, repeat, record))
                        print({key: rows[-1][key] for key in COLUMNS[:6]}, flush=True)
    return rows


def flat(model: str, mode: str, every: int, repeat: int, record: dict) -> dict:
    speed = {"samples_per_s": record["speed"]["train_samples_per_s"]} | record["speed"]
    return {"model": model, "mode": mode, "every": every, "repeat": repeat} | speed


def lost(rows: list[dict], model: str, mode: str) -> tuple[float, float]:
    """(samples/s without, plain steps that a sampled one takes), from medians."""
    of = {every: median(float(r["samples_per_s"]) for r in rows if (r["model"], r["mode"], int(r["every"])) == (model, mode, every))
          for every in (1, NEVER)}  # fmt: skip
    return of[NEVER], of[NEVER] / of[1]


def card(rows: list[dict]) -> str:
    found = {case: lost(rows, *case) for case in dict.fromkeys((row["model"], row["mode"]) for row in rows)}
    lines = [
        [*case, f"{without:,.0f}", f"{cost:.1f} plain steps", f"{(cost - 1) / DEFAULT:.2%}"] for case, (without, cost) in found.items()
    ]
    costs = [cost for _, cost in found.values()]
    numbers = {"steps": STEPS, "repeats": REPEATS, "default": DEFAULT, "least": min(costs), "most": max(costs)}
    table = markdown(["model", "mode", "samples/s", "a sampled step takes", "lost at the default"], lines)
    return CARD.format(setup=said(rows, "{device}, torch {torch}"), table=table, **numbers)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(measured(HERE, COLUMNS, measure)))
