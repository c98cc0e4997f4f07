"""The loop that an expert would write by hand: the libraries' own models, autocast, GradScaler, fused optimizer, channels_last,
torch.compile; inputs ready on the device, nothing logged, nothing saved. What mpx is measured against."""

import time
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls

COMPILE = {"resnet50": "default", "resnet18": "reduce-overhead", "bert_small": "reduce-overhead", "lstm": None}
BATCHES, WARMUP, WINDOWS = 4, 12, 3


class LSTM(nn.Module):
    """torch.nn.LSTM over embedded tokens, the mean of its outputs classified."""

    def __init__(self, size: int, vocabulary: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.lstm = nn.LSTM(size, size, 2, batch_first=True, dropout=0.1)
        self.dropout, self.classifier = nn.Dropout(0.1), nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.lstm(self.dropout(self.embedding(x)))[0].mean(1)))


class Logits(nn.Module):
    """A transformers classifier that returns its logits alone."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=x).logits


def build(name: str, classes: int, size: dict) -> nn.Module:
    """size: the sizes that a trial on a CPU makes smaller."""
    if name in ("resnet18", "resnet50"):
        from torchvision import models

        model = getattr(models, name)(num_classes=classes)
        if name == "resnet18":
            model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
        return model
    if name == "lstm":
        return LSTM(size["hidden"], size["vocabulary"], classes)
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=size["vocabulary"], hidden_size=size["hidden"], num_hidden_layers=size["layers"],
        num_attention_heads=size["hidden"] // 64, intermediate_size=4 * size["hidden"], num_labels=classes,
    )  # fmt: skip
    return Logits(BertForSequenceClassification(config))


def batches(shape: list[int], classes: int, batch: int, vocabulary: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    def x() -> Tensor:
        if len(shape) == 1:
            return torch.randint(1, vocabulary, (batch, *shape), device=device)
        return torch.randn(batch, *shape, device=device).to(memory_format=torch.channels_last)

    return [(x(), torch.randint(0, classes, (batch,), device=device)) for _ in range(BATCHES)]


def measure(name: str, precision: str, shape: list[int], classes: int, batch: int, size: dict, steps: int, *, tuned: bool) -> float:
    """Samples/s: the median of three windows. tuned: fused optimizer, channels_last, compiled; else the plain eager loop."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mode = MODES[precision]
    half = mode.autocast if device.type == "cuda" or mode.autocast == torch.bfloat16 else None
    model = build(name, classes, size).to(device)
    if tuned:
        model = model.to(memory_format=torch.channels_last)
    data = batches(shape, classes, batch, size["vocabulary"], device)
    run = torch.compile(model, mode=COMPILE[name]) if tuned and COMPILE[name] else model
    if len(shape) == 1:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=tuned)
    scaler = torch.amp.GradScaler(device.type, enabled=half == torch.float16)

    def step(i: int) -> None:
        x, y = data[i % BATCHES]
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            loss = cross_entropy(run(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    with float32_matmuls(mode, emulate=False):
        for i in range(WARMUP):
            step(i)
        return median(window(step, batch, steps, device) for _ in range(WINDOWS))


def window(step, batch: int, steps: int, device: torch.device) -> float:
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    for i in range(steps):
        step(i)
    synchronize()
    return batch * steps / (time.perf_counter() - start)
