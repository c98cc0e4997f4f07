"""Is FP8 faster than BF16 in BERT's layers? Recipes for linear layers, compiled and graphed, forward and
backward.

$ python experiments/fp8/run.py  # needs a CUDA device with FP8 to itself; about 12 minutes; writes results.csv and README.md
$ python experiments/fp8/run.py --card     # README.md from the committed results.csv
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from collecting import markdown, measured, said

HERE = Path(__file__).parent
STACKS = {  # hidden size, batch, tokens, layers
    "4,096 features, 32×512 tokens": (4096, 32, 512, 2),
    "2,048 features, 64×512 tokens": (2048, 64, 512, 2),  # mpx takes layers from here on
    "BERT-large, 256×512 tokens": (1024, 256, 512, 2),
    "BERT-large, 256×128 tokens": (1024, 256, 128, 3),
    "BERT-base, 256×128 tokens": (768, 256, 128, 3),
    "BERT-base, 256×512 tokens": (768, 256, 512, 2),
}
WORDS = {  # (recipe, layers) -> what it is
    ("bf16", "all"): "BF16",
    ("gw_hp", "all"): "scaled by row, weight gradient in BF16 (as in mpx)",
    ("gw_hp", "ffn"): "the same, in the feed-forward layers only",
    ("gw_hp_post", "all"): "the same, scales multiplied after the product",
    ("tensor_gw_hp", "all"): "scaled by tensor, weight gradient in BF16",
    ("tensor", "all"): "scaled by tensor",
    ("rowwise", "all"): "scaled by row",
}
COLUMNS = ("stack", "recipe", "layers", "ms")
CARD = """# Is FP8 faster than BF16 in BERT's layers?

**Question.** An earlier `precision=fp8` trained BERT-base 0.43 times as fast as BF16, because its casts broke the compiled graph at every
layer. Is FP8 faster when casts are plain operations that torch.compile fuses?

**Setup.** {setup}. Two or three layers of BERT with embeddings and dropout, forward and backward, compiled and replayed
from a CUDA graph; median of 7 windows of 10 calls. One run each.

**Command.** `python experiments/fp8/run.py`

{table}

**What we learnt.** At 768 features no recipe is faster than BF16. Scaling by row in all layers loses 5 % with 128 tokens and 15 % with 512,
which casts of weights would not explain. At 1,024 features it gains 5 % with 128 tokens and loses 5 % with 512; in the feed-forward layers
alone it gains 3 and 4 %. At 2,048 features it is 1.19 times as fast as BF16, at 4,096 1.26 times. Therefore mpx takes layers from 2,048
features on. Scaling by tensor is faster yet at 4,096 features (1.34 times) and slower at 2,048; one scale for all rows costs the small ones
their precision, so mpx scales by row.

**Not shown.** {missing}whole runs of models of that size; in which kernels the time is spent.

**Attribution.** The recipes are those of torchao.float8: tensorwise, rowwise, rowwise_with_gw_hp.
"""


def milliseconds(recipe: str, layers: str, hidden: int, batch: int, tokens: int, count: int) -> float:
    import torch
    from recipes import PLAIN, chosen
    from transformers import BertConfig, BertForSequenceClassification

    from mpx.models.bert import BertClassifier

    torch.manual_seed(0)
    torch._dynamo.reset()
    torch.nn.functional.linear = PLAIN if recipe == "bf16" else chosen(recipe, FITS[layers])
    config = BertConfig(
        hidden_size=hidden, num_hidden_layers=count, num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden, num_labels=2,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = BertClassifier(BertForSequenceClassification(config), "mean", padded=False).cuda()
    x, y = (
        torch.randint(5, 30000, (batch, tokens), device="cuda"),
        torch.randint(0, 2, (batch,), device="cuda"),
    )

    @torch.compile(dynamic=False)
    def forward(x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            return torch.nn.functional.cross_entropy(model(x), y)

    weights = list(model.parameters())
    try:
        return graphed(lambda: torch.autograd.grad(forward(x, y), weights, allow_unused=True))
    finally:
        torch.nn.functional.linear = PLAIN


FITS = {"all": lambda n, k: min(n, k) >= 512, "ffn": lambda n, k: max(n, k) >= 3072}


def graphed(step) -> float:
    """Milliseconds of a call, replayed."""
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        step()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    windows = []
    for _ in range(8):
        start.record()
        for _ in range(10):
            graph.replay()
        stop.record()
        stop.synchronize()
        windows.append(start.elapsed_time(stop) / 10)
    return median(windows[1:])  # the first warms up


def measure() -> Iterator[dict]:
    for (stack, sizes), (recipe, layers) in product(STACKS.items(), WORDS):
        row = {"stack": stack, "recipe": recipe, "layers": layers}
        try:
            row["ms"] = milliseconds(recipe, layers, *sizes)
            yield row
        except RuntimeError as error:  # of the compiler, or out of memory; the others are still wanted
            row["failed"] = " ".join(str(error).split())[:300]
        print(row, flush=True)


def card(rows: list[dict]) -> str:
    ms = {(row["stack"], row["recipe"], row["layers"]): float(row["ms"]) for row in rows}
    lines = [
        [stack, WORDS[recipe, layers], f"{value:.2f}", f"{ms[stack, 'bf16', 'all'] / value:.2f}"]
        for (stack, recipe, layers), value in ms.items()
    ]
    missing = [stack for stack in STACKS if (stack, "gw_hp", "all") not in ms]
    table = markdown(["step", "linear layers", "ms", "times as fast as BF16"], lines)
    return CARD.format(
        setup=said(rows, "{device}, torch {torch}"),
        table=table,
        missing="".join(f"{stack}; " for stack in missing),
    )


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(measured(HERE, COLUMNS, measure)))
