"""What channel permutation is worth and what it costs: the matrix of apex's README, and whole models.

$ python experiments/permutation/run.py  # one CPU core, six minutes; writes results.csv and prints the tables
"""

import statistics
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timm import create_model
from torch import nn
from torchvision.models import get_model
from transformers import BertConfig, BertForSequenceClassification

sys.path.append(str(Path(__file__).parents[1]))
from collecting import Arguments, markdown, write

from mpx.models.resnet import CifarResNet
from mpx.sparsity.permutation import permute_model
from mpx.sparsity.permutation.search import Share, search

THREADS, ROUNDS = 1, 7  # two threads wait for each other where other jobs use the cores too
MATRIX_STEPS = (200, 1000, 6000)  # 1000: the default


def matrix_rows() -> list[dict]:
    """Efficacy and seconds on np.random.rand(128, 64); every round has its own seed of the search."""
    np.random.seed(1)
    matrix = torch.from_numpy(np.random.rand(128, 64)).float()
    search(matrix, Share(5, 128))  # threads start
    best_half = float(matrix.topk(32, dim=1).values.sum(dtype=torch.float64))  # of every row
    rows = []
    for steps in MATRIX_STEPS:
        for seed in range(ROUNDS):
            started = time.perf_counter()
            found = search(matrix, Share(steps, 128), seed=seed)
            seconds = time.perf_counter() - started
            values = {"seconds": seconds, "kept_before": found.before, "kept_after": found.after}
            values |= {"subject": "matrix 128x64", "setting": f"{steps} steps", "seed": seed, "part": "all"}
            rows.append(values | {"efficacy": (found.after - found.before) / (best_half - found.before)})
    return rows


def heavy_tailed(model: nn.Module) -> nn.Module:
    """Student-t weights (4 degrees of freedom), whose input channels differ in scale (log-normal, σ 0.5), as
    in trained networks.
    """
    torch.manual_seed(0)
    student = torch.distributions.StudentT(4.0)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                scale = layer.weight.std() / 2**0.5
                shape = (-1, *[1] * (layer.weight.dim() - 2))
                channels = torch.randn(layer.weight.shape[1]).mul(0.5).exp().view(1, *shape)
                layer.weight.copy_(student.sample(layer.weight.shape) * scale * channels)
    return model


def model_rows(subject: str, setting: str) -> list[dict]:
    """Shares of Σ|w| that 2:4 keeps, per kind of layer and over all, and the largest change of an output."""
    torch.manual_seed(0)
    make, example = MODELS[subject]
    model = make().eval() if setting == "as initialised" else heavy_tailed(make()).eval()
    with torch.no_grad():
        before = model(example)
        before = before if isinstance(before, torch.Tensor) else before.logits
        started = time.process_time()
        report = permute_model(model, example)
        cpu_seconds = time.process_time() - started
        after = model(example)
        after = after if isinstance(after, torch.Tensor) else after.logits
    change = {}
    if before.any():  # ViT begins with zeros
        change = {"output_change": float((after - before).abs().max() / before.abs().max())}
    sizes = {name: float(tensor.abs().sum()) for name, tensor in model.state_dict().items()}
    kinds = defaultdict(list)
    for layer in report.layers:
        kinds[f"{layer['type']} {'×'.join(map(str, layer['shape'][2:]))}".strip()].append(layer)
    rows = []
    for kind, layers in kinds.items():
        size = sum(sizes[layer["name"]] for layer in layers)
        permuted = f"{sum(layer['permuted'] for layer in layers)} of {len(layers)} layers permuted"
        row = {"part": f"{kind} ({permuted})"}
        for key in ("kept_before", "kept_after"):
            row[key] = sum(layer[key] * sizes[layer["name"]] for layer in layers) / size
        rows.append(row)
    total = {"kept_before": report.kept_before, "kept_after": report.kept_after, "seconds": report.seconds}
    rows.append({"part": "all", "cpu_seconds": cpu_seconds} | total | change)
    return [{"subject": subject, "setting": setting} | row for row in rows]


def bert() -> nn.Module:
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    return BertForSequenceClassification(BertConfig(**sizes))


IMAGE = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
MODELS = {
    "ResNet-20": (lambda: CifarResNet(3, 3, 10), IMAGE[..., :32, :32]),
    "ResNet-18": (partial(get_model, "resnet18"), IMAGE),
    "ResNet-50": (partial(get_model, "resnet50"), IMAGE),
    "BERT-small": (bert, torch.arange(1, 65).view(2, 32)),
    "RegNetX-400MF": (partial(get_model, "regnet_x_400mf"), IMAGE),
    "ResNeXt-50 32×4d": (partial(get_model, "resnext50_32x4d"), IMAGE),
    "DPN-68b": (partial(create_model, "dpn68b"), IMAGE),
    "ViT-B/16": (partial(get_model, "vit_b_16"), IMAGE),
}


def table(rows: list[dict]) -> str:
    heads = ["subject", "setting", "part", "kept before", "kept after", "efficacy", "seconds", "CPU seconds"]
    lines = []
    for row in rows:
        kept = [
            f"{row[key]:.4f}" if row[key] < 1 else f"{row[key]:.1f}" for key in ("kept_before", "kept_after")
        ]
        forms = {"efficacy": ".1%", "seconds": ".2f", "cpu_seconds": ".1f", "output_change": ".0e"}
        rest = [f"{row[key]:{form}}" if key in row else "" for key, form in forms.items()]
        lines.append([row["subject"], row["setting"], row["part"], *kept, *rest])
    return markdown([*heads, "change of outputs"], lines)


def medians(rows: list[dict]) -> list[dict]:
    """One row per setting of the matrix, the median of its rounds."""
    settings = defaultdict(list)
    for row in rows:
        settings[row["setting"]].append(row)
    numbers = ("kept_before", "kept_after", "efficacy", "seconds")
    return [
        several[0] | {key: statistics.median(row[key] for row in several) for key in numbers}
        for several in settings.values()
    ]


def main() -> None:
    Arguments().parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    matrix = matrix_rows()
    print(table(medians(matrix)), flush=True)
    models = [row for subject in MODELS for row in model_rows(subject, "as initialised")]
    models += [row for subject in ("ResNet-50", "BERT-small") for row in model_rows(subject, "heavy-tailed")]
    print(table(models))
    fields = ["subject", "setting", "part", "seed", "kept_before", "kept_after", "efficacy"]
    fields += ["seconds", "cpu_seconds", "output_change"]
    write(Path(__file__).with_name("results.csv"), fields, matrix + models)


if __name__ == "__main__":
    main()
