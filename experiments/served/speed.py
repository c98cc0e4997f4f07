"""How fast a 2:4 or quantised model is served, beside the fastest dense one and beside other libraries.
Writes speed.csv, and the times of single layers to layers.csv.

$ python experiments/served/speed.py bert_large:bf16,int8,fp8 bert_base:bf16,int8 resnet50:bf16  # needs a CUDA device to itself; 6 minutes
$ python experiments/served/speed.py resnet18:fp16,bf16,int8 bert_small:fp16,bf16,int8 lstm:fp16,bf16,int8  # the models of accuracy.py

Speed does not depend on values, so weights are random, and pruned by magnitude to 2:4. All rows of a model
are of one process. Dense rows are compiled, and graphed layer by layer. Rivals: transformers' BertModel without a mask, torchvision's ResNet-50.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, bert_without_mask, printed, write

from mpx.data.spec import Spec
from mpx.deploy import algorithms
from mpx.deploy.backends import REFUSED, Served, latency, relative_error, throughput
from mpx.deploy.build import Trained, cast, in_format, mode_of
from mpx.deploy.choose import Way, choose, free, plans
from mpx.deploy.kernels import layers, with_kernels
from mpx.deploy.prepare import folded, ranges
from mpx.models import build
from mpx.precision.switches import searching
from mpx.settings.deploy import QUANTISED
from mpx.settings.front_door import CONF
from mpx.sparsity.patterns import mask_2of4

HERE = Path(__file__).parent
CUDA = torch.device("cuda")
COLUMNS = ("model", "batch", "format", "weights", "candidate", "chosen", "samples_per_s", "latency_ms_p50")
COLUMNS += ("relative_error", "rejected")
LAYER_COLUMNS = ("model", "batch", "format", "layer", "layers", "shape", "rows", "kernel", "ms", "serves")
BERT = {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "pool": "mean"}
LARGE = {"num_layers": 24, "hidden_size": 1024, "num_heads": 16, "pool": "mean"}
TEXT = Spec("text", (128,), 2, vocab_size=30522, pad_id=0, padded=False)
IMAGE = Spec("image", (3, 224, 224), 1000)
CIFAR, SST2 = Spec("image", (3, 32, 32), 10), Spec("text", (64,), 2, vocab_size=8000, pad_id=0, padded=False)
MODELS = {
    "bert_base": ("bert_small", BERT, TEXT, 256),
    "bert_large": ("bert_small", LARGE, TEXT, 256),
    "resnet50": ("resnet50", {}, IMAGE, 256),
    "resnet18": ("resnet18", {}, CIFAR, 256),
    "bert_small": ("bert_small", {"pool": "mean"}, SST2, 256),
    "lstm": ("lstm", {"hidden_size": 256}, SST2, 256),
    "tiny": ("bert_small", {"num_layers": 2, "hidden_size": 256, "pool": "mean"}, TEXT, 32),
}


def main() -> None:
    parser = Arguments()
    parser.add_argument("models", nargs="+", metavar="MODEL:FORMATS", help=f"models: {', '.join(MODELS)}")
    models = parser.parse_args().models
    for word in models:
        name, _, formats = word.partition(":")
        if name not in MODELS or not formats:
            like = f"a model and formats, as bert_base:bf16,int8. The models are {', '.join(MODELS)}"
            parser.error(f"{word} must be {like}")
    of_layers: list[dict] = []

    def of_models() -> Iterator[dict]:
        for word in models:
            for row in measured(*word.split(":")):
                if "layer" in row:
                    of_layers.append(row)
                else:
                    yield row

    try:
        write(HERE / "speed.csv", COLUMNS, printed(of_models(), COLUMNS))
    finally:  # also of the models before one that failed
        write(HERE / "layers.csv", LAYER_COLUMNS, printed(of_layers, LAYER_COLUMNS))


def measured(name: str, formats: str) -> Iterator[dict]:
    conf, changes, spec, size = MODELS[name]
    torch.manual_seed(0)
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{conf}.yaml")) | changes
    model = pruned(build(settings, spec).eval().requires_grad_(False))
    if spec.kind == "image":
        x = torch.randn(size, *spec.shape)
    else:
        x = torch.randint(1, spec.vocab_size, (size, *spec.shape))
    with torch.no_grad(), searching():
        # of a data set, in_format asks nothing but its spec
        data = SimpleNamespace(spec=spec)
        found = Trained(folded(model, x[:2]) if spec.kind == "image" else model, data)
        common = {"model": name, "batch": size}
        reference = model.to(CUDA)(x[:32].to(CUDA))
        model.cpu()
        for fmt in formats.split(","):
            begun = time.perf_counter()
            for row in served(found, x.to(CUDA), fmt, reference):
                yield {**common, "format": fmt, "weights": "auto", **row}
            print(f"{name} {fmt}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        algorithms.stop()
        for row in rivals(name, x.to(CUDA)):
            yield {**common, "format": "bf16", "weights": "dense", **row}


def served(found: Trained, x: Tensor, fmt: str, reference: Tensor) -> Iterator[dict]:
    """A row for each candidate, the chosen one with its latency; then one for each kernel of each shape of
    layer.
    """
    mode = mode_of(fmt, CUDA)
    x, largest = cast(x, mode), {}
    if fmt in QUANTISED:
        largest = ranges(in_format(found, mode, CUDA), lambda: iter([x[:64]]), fmt)
    timed = layers(in_format(found, mode, CUDA), x, fmt, sparse=True)
    candidates = product(plans(timed, fmt, "auto").items(), ("graph", "compile"))
    ways = [Way(plan, kernels, backend) for (plan, kernels), backend in candidates]

    def call_by(way: Way) -> Served:
        return Served(with_kernels(in_format(found, mode, CUDA), way.kernels, largest), way.backend, CUDA)

    choice = choose(ways, call_by, x, lambda out: None, lambda part: None)
    call = call_by(choice.way)
    error = relative_error(call(x)[:32].float(), reference)
    for way, rate in choice.rates.items():
        row = {"candidate": str(way), "chosen": way is choice.way, "samples_per_s": rate}
        best = {"latency_ms_p50": latency(call, x)["latency_ms_p50"], "relative_error": error}
        yield row | (best if way is choice.way else {})
    alike = defaultdict(list)  # layers of one shape are timed once
    for layer in (layer.record(choice.way.kernels) for layer in timed):
        alike[layer["shape"], layer["rows"], *layer["ms"].items()].append(layer)
    for layer, *others in alike.values():
        shape = "×".join(map(str, layer["shape"]))
        here = {"layer": layer["name"], "layers": 1 + len(others), "shape": shape, "rows": layer["rows"]}
        served_by = layer["served"]
        for kernel, ms in layer["ms"].items():
            yield here | {"kernel": kernel, "ms": ms, "serves": kernel == served_by}
        for kernel, reason in layer["refused"].items():
            print("  layer", layer["name"], kernel, reason, file=sys.stderr)
    print("  refused", choice.refused, file=sys.stderr)
    call = None
    free()


def rivals(name: str, x: Tensor) -> Iterator[dict]:
    """The same network of another library in BF16, each way that its users would try; ResNet-18 and the LSTM
    have none.
    """
    if name in ("resnet18", "lstm"):
        return
    if name == "resnet50":
        from torchvision.models import resnet50

        theirs = resnet50().to(CUDA, torch.bfloat16, memory_format=torch.channels_last)
        x, library = x.bfloat16().contiguous(memory_format=torch.channels_last), "torchvision"
    else:
        from transformers import BertConfig, BertModel

        bert_without_mask()
        _, sizes, spec, _ = MODELS[name]
        layers, width = sizes.get("num_layers", 4), sizes.get("hidden_size", 512)
        config = BertConfig(
            vocab_size=spec.vocab_size, num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width,
            num_attention_heads=sizes.get("num_heads", 8),
        )  # fmt: skip
        theirs = Plain(BertModel(config, add_pooling_layer=False)).to(CUDA, torch.bfloat16)
        library = "transformers"
    for backend in ("eager", "graph", "compile"):
        free()
        try:
            call = Served(theirs.eval(), backend, CUDA)
            row = {
                "candidate": f"{library}, {backend}",
                "chosen": False,
                "samples_per_s": throughput(call, x),
            }
            yield row | {"latency_ms_p50": latency(call, x)["latency_ms_p50"]}
        except REFUSED as error:
            print(f"  {library}, {backend}: {error}", file=sys.stderr)
        call = None


class Plain(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0].mean(1)


def pruned(model: nn.Module) -> nn.Module:
    """Every weight that 2:4 kernels could take, also those of convolutions."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.LSTM):
            for name, weight in layer.named_parameters(recurse=False):
                if name.startswith("weight") and weight.shape[1] % 16 == 0:
                    weight.mul_(mask_2of4(weight))
    return model


if __name__ == "__main__":
    main()
