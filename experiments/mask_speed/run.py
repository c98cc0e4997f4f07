"""How long do masks take? The masks of all prunable weights of BERT-base against a copy of those weights.

$ python experiments/mask_speed/run.py                  # writes results.csv and README.md (under a minute on a GPU)
$ python experiments/mask_speed/run.py --apex DIR       # also NVIDIA's apex, whose checkout is DIR, on the same tensors
$ python experiments/mask_speed/run.py --layers 1       # a quick look: fewer of BERT-base's 12 layers; writes nothing
$ python experiments/mask_speed/run.py --out DIR        # writes into DIR, for a machine with a temporary checkout
$ python experiments/mask_speed/run.py --card           # README.md from the committed results.csv
"""

import importlib.util
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from mpx.measure.environment import environment
from mpx.measure.timing import elapsed, median_time
from mpx.sparsity.patterns import NofM, Unstructured
from mpx.sparsity.tiles import Tiles

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import Arguments, markdown, read, write

HERE = Path(__file__).parent
ROUNDS, BUDGET_S = 5, 0.3
LAYER = [(768, 768)] * 4 + [(3072, 768), (768, 3072)]  # attention: query, key, value, output; feed-forward: in, out
COPY = "copy"
MAX_COPIES, MIN_SPEEDUP = 3.0, 10.0  # bounds: time ÷ the copy's, speed ÷ apex's
COLUMNS = ("what", "median_ms", "low_ms", "high_ms", "times_copy", "weights", "values", "format", "rounds", "device", "torch")


class Compiled(NofM):
    """The pattern by torch.compile even on a GPU, where mpx has a Triton kernel."""

    def _in_one_launch(self, weights):
        return {}


def calls(weights: list[torch.Tensor], apex: Path | None) -> dict[str, Callable[[], object]]:
    """The functions to time, by name. On a GPU, those of 2of4 are also timed as one CUDA graph."""
    copies = [torch.empty_like(weight) for weight in weights]
    found: dict[str, Callable[[], object]] = {COPY: lambda: torch._foreach_copy_(copies, weights)}
    found |= {"2of4": lambda: NofM(2, 4).masks(weights), "2of4 compiled": lambda: Compiled(2, 4).masks(weights, compiled=True)}
    if weights[0].is_cuda:
        found["2of4 Triton"] = lambda: NofM(2, 4).masks(weights, compiled=True)
        found |= {f"{name}, one CUDA graph": graphed(call) for name, call in list(found.items())}
    found["4of8"] = lambda: NofM(4, 8).masks(weights)
    found["2of4_2d best"] = lambda: Tiles("best").masks(weights)
    found["2of4_2d greedy"] = lambda: Tiles("greedy").masks(weights)
    found["unstructured"] = lambda: Unstructured(0.5).masks(weights)
    if apex is not None:
        create_mask = apex_masks(apex)
        found["apex m4n2_1d"] = lambda: [create_mask(weight, "m4n2_1d") for weight in weights]
    assert_equal({name: call for name, call in found.items() if is_ours(name)})
    return found


def is_ours(name: str) -> bool:
    """Whether it computes the masks of 2of4."""
    return name == "2of4" or name.startswith(("2of4 ", "2of4,"))


def assert_equal(ways: dict[str, Callable[[], list[torch.Tensor]]]) -> None:
    expected = ways["2of4"]()
    for name, call in ways.items():
        for mask, exact in zip(call(), expected, strict=True):
            assert torch.equal(mask, exact), f"{name} has other masks"


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    for _ in range(3):  # compiles, and fills the allocator's cache
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    return lambda: (graph.replay(), kept)[1]


def apex_masks(folder: Path) -> Callable[..., torch.Tensor]:
    """create_mask of an apex checkout, loaded from its file, since apex's __init__ needs compiled parts."""
    spec = importlib.util.spec_from_file_location("sparse_masklib", folder / "apex/contrib/sparsity/sparse_masklib.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # the module looks itself up in sys.modules
    spec.loader.exec_module(module)
    return module.create_mask


def measure(found: dict[str, Callable[[], object]], device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of each call per round. Each round times all calls in a new order."""
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


WAYS = (
    " Compiled: PyTorch's operations through `torch.compile`. Triton: mpx's own kernel, one launch for all weights, which mpx uses on a "
    "GPU when masks change at every step. All variants of 2of4 were checked to give the same masks."
)


def card(table: list[dict[str, object]]) -> str:
    first, by_name = table[0], {row["what"]: row for row in table}
    lines = []
    for row in table:
        middle, low, high = (f"{float(row[key]):.3f}" for key in ("median_ms", "low_ms", "high_ms"))
        lines.append([row["what"], middle, f"{low} to {high}", f"{float(row['times_copy']):.2f}"])
    shown = markdown(["what", "ms, median", "low to high", "× the copy"], lines)
    ours = min((row for row in table if is_ours(str(row["what"]))), key=_median)
    copy = by_name["".join([COPY, *str(ours["what"]).partition(",")[1:]])]  # a graph beside a graph
    verdict = (
        f"The fastest 2of4 ({ours['what']}) takes {_median(ours) / _median(copy):.2f} × the time of the {copy['what']}; the bound on a GPU "
        f"is {MAX_COPIES:g}. Masks have a byte for each value of four, so they move 5/8 of the copy's bytes."
    )
    if "apex m4n2_1d" in by_name:
        eager = min((row for row in table if is_ours(str(row["what"])) and "CUDA graph" not in str(row["what"])), key=_median)
        ratio = _median(by_name["apex m4n2_1d"]) / _median(eager)
        verdict += f" Without a CUDA graph, {eager['what']} is {ratio:.1f} × as fast as apex's m4n2_1d, which is called "
        verdict += f"for each weight; the bound is {MIN_SPEEDUP:g}."
    return (
        "# How long do masks take?\n\n"
        "**Question.** How long does computing the masks of all prunable weights of BERT-base take, relative to copying them?\n\n"
        f"**Setup.** {first['device']}, torch {first['torch']}. {first['weights']} weights with {int(first['values']):,} values in total, "
        f"{first['format']}, normally distributed. {first['rounds']} rounds time all variants in turn and take a median of each; the ratio "
        "is the median over rounds. Other programs ran on the host's other GPUs and cores, which delays launches outside of a CUDA graph. "
        f"The copy is one `torch._foreach_copy_`.{WAYS if any('Triton' in str(row['what']) for row in table) else ''}\n\n"
        "**Command.** `python experiments/mask_speed/run.py`, with `--apex DIR` for the row of apex\n\n"
        f"{shown}\n\n"
        f"**What we learnt.** {verdict}\n"
    )


def measure_all(layers: int, apex: Path | None) -> list[dict[str, object]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    weights = [torch.randn(shape, device=device) for shape in [*LAYER * layers, (768, 768)]]  # the last is the pooler
    return rows(measure(calls(weights, apex), device), weights)


def main() -> None:
    parser = Arguments()
    parser.add_argument("--apex", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--out", type=Path, default=HERE, help="where results.csv and README.md are written")
    parser.add_argument("--card", action="store_true", help="write README.md from the existing results.csv")
    options = parser.parse_args()
    if options.layers != 12:
        print(card(measure_all(options.layers, options.apex)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.card:
        write(options.out / "results.csv", COLUMNS, measure_all(12, options.apex))
    text = card(read(options.out / "results.csv"))
    print(text)
    (options.out / "README.md").write_text(text)


if __name__ == "__main__":
    main()
