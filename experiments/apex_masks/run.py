"""Do our masks equal NVIDIA apex's? Compares apex's ASP with sparsity=2of4 on every layer of ResNet-50 and
BERT-base.

$ python experiments/apex_masks/run.py --apex DIR --commit ID  # DIR: a checkout of github.com/NVIDIA/apex; under a minute on a GPU
$ python experiments/apex_masks/run.py --apex DIR --cpu  # a quick look without a GPU: apex's .cuda() does nothing
"""

import sys
from collections import defaultdict
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, fill, markdown, write

from mpx.errors import UserError
from mpx.measure.environment import environment
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls
from mpx.sparsity.choose import Apex, ask, emptied
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.patterns import NofM
from mpx.sparsity.tiles import Tiles

HERE = Path(__file__).parent
MODELS = ("ResNet-50", "BERT-base")
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
TRIALS = (NofM(2, 4), Tiles("best"), Tiles("greedy"))
HEADS = (
    "model",
    "format",
    "layers",
    "pruned by only one",
    "groups",
    "other mask",
    "of these, equal FP32 sums",
)
COLUMNS = ("model", "format", "layer", "shape", "groups", "mpx_differs", "equal_sums", "apex_alone")


def model_of(name: str) -> nn.Module:
    """With initial weights, so that nothing is downloaded."""
    if name == "ResNet-50":
        from torchvision.models import resnet50

        return resnet50()
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def layer_rows(name: str, fmt: str, device: torch.device) -> list[dict]:
    """One row per layer: the groups of four in which a mask differs from apex's, and how many of them have
    equal FP32 sums of both pairs.

    mpx_differs: sparsity=2of4; apex_alone: a layer that only apex or only mpx prunes by default.
    """
    torch.manual_seed(0)
    model = model_of(name).to(device)
    apexs = eligible(model)
    model.to(FORMATS[fmt])
    pruned = [weight for weight in weights(model, NofM(2, 4), Rules()) if weight.reason is None]
    parameters = [weight.parameter for weight in pruned]
    theirs = ask(model, parameters, "m4n2_1d")
    ours = NofM(2, 4).masks(parameters)
    alone = apexs ^ {weight.layer for weight in pruned}
    values = [parameter.detach().clone() for parameter in parameters]
    rows = []
    for weight, value, apex, mpx in zip(pruned, values, theirs, ours, strict=True):
        groups, other = fours(apex), (fours(apex) != fours(mpx)).any(1)
        equal = sums(value, apex)[other] == sums(value, mpx)[other]
        row = {"model": name, "format": fmt, "layer": weight.layer, "groups": len(groups)}
        row |= {"shape": "×".join(map(str, value.shape))}
        rows.append(row | {"mpx_differs": int(other.sum()), "equal_sums": int(equal.sum()), "apex_alone": 0})
    blank = dict.fromkeys(COLUMNS, 0) | {"model": name, "format": fmt, "shape": ""}
    return rows + [blank | {"layer": layer, "apex_alone": 1} for layer in sorted(alone)]


def eligible(model: nn.Module) -> set[str]:
    """The layers that apex prunes by default. apex checks shapes only in FP32 and FP16, so the model is FP32
    here.
    """
    from apex.contrib.sparsity import ASP as Real

    with emptied(Real), redirect_stdout(StringIO()):
        Real.init_model_for_pruning(model, verbosity=0, allow_permutation=False)
        return {layer for layer, *_ in Real._ASP__sparse_parameters}


def fours(tensor: Tensor) -> Tensor:
    """[out, in, ...] -> [groups, 4] along the inputs."""
    return tensor.movedim(1, -1).reshape(-1, 4)


def sums(value: Tensor, mask: Tensor) -> Tensor:
    """The FP32 sum of the two kept magnitudes of each group."""
    return (fours(value).float().abs() * fours(mask)).sum(1)


def trial(pattern: NofM | Tiles, device: torch.device) -> tuple[str, str]:
    """A request to apex, and its outcome on a small layer."""
    layer = nn.Linear(16, 16, device=device)
    apex = Apex(pattern, layer)
    try:
        apex.masks([layer.weight])
    except UserError as error:
        return apex.calculator, str(error.__cause__)
    return apex.calculator, "works"


def tables(rows: list[dict], trials: list[tuple[str, str]], where: str) -> dict[str, str]:
    """What stands in the card."""
    found = defaultdict(list)
    for row in rows:
        found[row["model"], row["format"]].append(row)
    lines = []
    for (model, fmt), several in found.items():
        totals = {column: sum(row[column] for row in several) for column in COLUMNS[4:]}
        layers = len(several) - totals["apex_alone"]
        groups = [f"{totals[column]:,}" for column in ("groups", "mpx_differs", "equal_sums")]
        lines.append([model, fmt, layers, totals["apex_alone"], *groups])
    return {
        "masks": f"{where}.\n\n{markdown(HEADS, lines)}",
        "requests": markdown(["request", "outcome"], trials),
    }


def main() -> None:
    parser = Arguments()
    parser.add_argument("--apex", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--cpu", action="store_true", help="print the tables and write nothing")
    options = parser.parse_args()
    sys.path.insert(0, str(options.apex.resolve()))
    if options.cpu:
        Tensor.cuda = lambda tensor, *_, **__: tensor
        torch.cuda.FloatTensor, torch.cuda.IntTensor = torch.FloatTensor, torch.IntTensor
    elif not torch.cuda.is_available():
        parser.error("apex's ASP needs a CUDA device, and none is visible here; --cpu for a look without one")
    device = torch.device("cpu" if options.cpu else "cuda")
    with float32_matmuls(MODES["fp32"], emulate=False):
        rows = [row for name in MODELS for fmt in FORMATS for row in layer_rows(name, fmt, device)]
        trials = [trial(pattern, device) for pattern in TRIALS]
    host = environment()
    where = f"{host['cpu'] if options.cpu else torch.cuda.get_device_name()}, torch {host['torch']}"
    parts = tables(rows, trials, f"{where}; apex at commit {options.commit}")
    print(*parts.values(), sep="\n\n")
    if options.cpu:
        return
    write(HERE / "results.csv", COLUMNS, rows)
    fill(HERE / "README.md", parts)


if __name__ == "__main__":
    main()
