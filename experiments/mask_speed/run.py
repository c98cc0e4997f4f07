"""How long do masks take? All prunable weights of BERT-base, against copying those weights, side by side.

$ python experiments/mask_speed/run.py                  # writes results.csv and README.md (about a minute on a GPU)
$ python experiments/mask_speed/run.py --apex DIR       # also NVIDIA's apex, whose checkout is DIR, on the same tensors
$ python experiments/mask_speed/run.py --layers 1       # a quick look: fewer of BERT-base's 12 layers; writes nothing
"""

import argparse
import csv
import importlib.util
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from mpx.measure.environment import environment
from mpx.measure.timing import elapsed, median_time
from mpx.sparsity.patterns import NofM
from mpx.sparsity.tiles import Tiles
from mpx.sparsity.unstructured import Unstructured

HERE = Path(__file__).parent
ROUNDS, BUDGET_S = 5, 0.3
LAYER = [(768, 768)] * 4 + [(3072, 768), (768, 3072)]  # attention: query, key, value, output; feed-forward: in, out
COPY = "copy"
MOST, LEAST = 3.0, 10.0  # × the copy at most; × faster than apex at least
COLUMNS = ("what", "median_ms", "low_ms", "high_ms", "times_copy", "weights", "values", "format", "rounds", "device", "torch")


def calls(weights: list[torch.Tensor], apex: Path | None) -> dict[str, Callable[[], object]]:
    """What is timed, by name: functions of no arguments. On a GPU each of ours also as one CUDA graph."""
    copies = [torch.empty_like(weight) for weight in weights]
    found: dict[str, Callable[[], object]] = {COPY: lambda: torch._foreach_copy_(copies, weights)}
    found["2of4"] = lambda: NofM(2, 4).masks(weights)
    found["2of4 compiled"] = lambda: NofM(2, 4).masks(weights, compiled=True)
    if weights[0].is_cuda:
        found |= {f"{name}, one CUDA graph": graphed(found[name]) for name in (COPY, "2of4", "2of4 compiled")}
    found["4of8"] = lambda: NofM(4, 8).masks(weights)
    found["2of4_2d best"] = lambda: Tiles("best").masks(weights)
    found["2of4_2d greedy"] = lambda: Tiles("greedy").masks(weights)
    found["unstructured"] = lambda: Unstructured(0.5).masks(weights)
    if apex is not None:
        create_mask = apex_masks(apex)
        found["apex m4n2_1d"] = lambda: [create_mask(weight, "m4n2_1d") for weight in weights]
    return found


def graphed(call: Callable[[], object]) -> Callable[[], None]:
    for _ in range(3):  # compiles, and fills the allocator's cache
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    return lambda: (graph.replay(), kept)[0]


def apex_masks(folder: Path) -> Callable[..., torch.Tensor]:
    """create_mask of an apex checkout, whose __init__ needs compiled parts that this does not."""
    spec = importlib.util.spec_from_file_location("sparse_masklib", folder / "apex/contrib/sparsity/sparse_masklib.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # it looks itself up there
    spec.loader.exec_module(module)
    return module.create_mask


def measure(found: dict[str, Callable[[], object]], device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of each call, one per round; in every round all are timed, in a new order."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for call in found.values():
        call()  # compiles
    slow = {name for name, call in found.items() if elapsed(call, device, 1) > BUDGET_S}
    for round_ in range(ROUNDS):
        for name in random.Random(round_).sample(list(found), len(found)):
            call = found[name]
            seconds = elapsed(call, device, 1) if name in slow else median_time(call, device, BUDGET_S).seconds
            times[name].append(seconds * 1e3)
    return times


def rows(times: dict[str, list[float]], weights: list[torch.Tensor]) -> list[dict[str, object]]:
    where = torch.cuda.get_device_name() if weights[0].is_cuda else f"{environment()['cpu']}, {torch.get_num_threads()} threads"
    shared = {"weights": len(weights), "values": sum(weight.numel() for weight in weights), "format": str(weights[0].dtype).split(".")[1]}
    shared |= {"rounds": ROUNDS, "device": where, "torch": torch.__version__}
    table = []
    for name, ms in times.items():
        ratio = statistics.median(mine / copy for mine, copy in zip(ms, times[COPY], strict=True))
        figures = {"median_ms": statistics.median(ms), "low_ms": min(ms), "high_ms": max(ms), "times_copy": ratio}
        table.append({"what": name} | {key: f"{value:.4f}" for key, value in figures.items()} | shared)
    return table


def _median(row: dict[str, object]) -> float:
    return float(row["median_ms"])


def card(table: list[dict[str, object]]) -> str:
    first, by_name = table[0], {row["what"]: row for row in table}
    lines = ["| what | ms, median | low to high | × the copy |", "|---|---|---|---|"]
    for row in table:
        spread = f"{float(row['low_ms']):.3f} to {float(row['high_ms']):.3f}"
        lines.append(f"| {row['what']} | {float(row['median_ms']):.3f} | {spread} | {float(row['times_copy']):.2f} |")
    ours = min((row for row in table if str(row["what"]).startswith("2of4") and "2d" not in str(row["what"])), key=_median)
    verdict = f"The fastest 2of4 ({ours['what']}) takes {float(ours['times_copy']):.2f} × the copy; the bound on a GPU is {MOST:g}."
    if "apex m4n2_1d" in by_name:
        ratio = _median(by_name["apex m4n2_1d"]) / _median(ours)
        verdict += f" It is {ratio:.1f} × faster than apex's m4n2_1d; the bound is {LEAST:g}."
    return (
        "# How long do masks take?\n\n"
        "**Question.** How long does it take to compute the masks of all prunable weights of BERT-base, in units of copying them?\n\n"
        f"**Setup.** {first['device']}, torch {first['torch']}; {first['weights']} weights of {int(first['values']):,} values in all, "
        f"{first['format']}, normal random; {first['rounds']} rounds in turn, each a median; the ratio is the rounds' median. "
        "The copy is one `torch._foreach_copy_`.\n\n"
        "**Command.** `python experiments/mask_speed/run.py`, with `--apex DIR` where apex is a row\n\n" + "\n".join(lines) + "\n\n"
        f"**What we learnt.** {verdict}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--apex", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    weights = [torch.randn(shape, device=device) for shape in [*LAYER * options.layers, (768, 768)]]  # the last is the pooler
    table = rows(measure(calls(weights, options.apex), device), weights)
    text = card(table)
    print(text)
    if options.layers == 12:
        with open(HERE / "results.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(table)
        (HERE / "README.md").write_text(text)


if __name__ == "__main__":
    main()
