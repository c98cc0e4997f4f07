"""Loops without a framework: the libraries' own models, inputs ready on the device, nothing logged, nothing saved.

`hand` is what an expert would write: autocast, GradScaler, fused optimizer, channels_last, torch.compile. `loop` is the plain eager loop.
`timm` is the step of timm's train.py: its model, optimizer and NativeScaler, with its flags --amp --channels-last.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from setups import Setup, device
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls

COMPILE = {  # Dynamo leaves out nn.LSTM, for which cuDNN has kernels of its own
    "resnet50": "default", "resnet18": "reduce-overhead", "bert_small": "reduce-overhead", "lstm": None,
}  # fmt: skip
BATCHES, WARMUP = 4, 12


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


def bert(setup: Setup) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=setup.vocabulary, hidden_size=setup.hidden, num_hidden_layers=setup.layers,
        num_attention_heads=setup.hidden // 64, intermediate_size=4 * setup.hidden, num_labels=setup.classes,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def build(setup: Setup) -> nn.Module:
    if setup.model == "lstm":
        return LSTM(setup.hidden, setup.vocabulary, setup.classes)
    if setup.text:
        return Logits(bert(setup))
    from torchvision import models

    model = getattr(models, setup.model)(num_classes=setup.classes)
    if setup.model == "resnet18":
        model.conv1, model.maxpool = nn.Conv2d(setup.shape[0], 64, 3, padding=1, bias=False), nn.Identity()
    return model


def batches(setup: Setup, *, channels_last: bool) -> list[tuple[Tensor, Tensor]]:
    """Random (x, y) on the device."""

    def x() -> Tensor:
        if setup.text:
            return torch.randint(1, setup.vocabulary, (setup.batch, *setup.shape), device=device())
        images = torch.randn(setup.batch, *setup.shape, device=device())
        return images.to(memory_format=torch.channels_last) if channels_last else images

    return [(x(), torch.randint(0, setup.classes, (setup.batch,), device=device())) for _ in range(BATCHES)]


def optimizer_of(setup: Setup, model: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    if setup.text:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused or None)


def half(setup: Setup) -> torch.dtype | None:
    """Autocast's format; a CPU has no FP16 worth the name, and trains in FP32 there, which is no measurement of anything."""
    wanted = MODES[setup.precision].autocast
    return None if device().type == "cpu" and wanted == torch.float16 else wanted


class Loop:
    """Stays ready between its windows. `note` says what it is."""

    def __init__(self, setup: Setup, kind: str):
        self.setup = setup
        tuned = kind == "hand"
        self.note = str(COMPILE[setup.model]) if tuned else "eager"
        self.step = timm_step(setup) if kind == "timm" else own_step(setup, tuned=tuned)
        self.warm = False

    def samples_per_s(self) -> float:
        with float32_matmuls(MODES[self.setup.precision], emulate=False):
            if not self.warm:
                timed(self.step, WARMUP)
                self.warm = True
            return self.setup.batch * self.setup.steps / timed(self.step, self.setup.steps)

    def close(self) -> None:
        self.step = None


def own_step(setup: Setup, *, tuned: bool) -> Callable[[int], None]:
    _, _, train_on = training(setup, tuned=tuned)
    data = batches(setup, channels_last=tuned)
    return lambda i: train_on(*data[i % BATCHES])


def training(setup: Setup, *, tuned: bool) -> tuple[nn.Module, dict[str, Any], Callable[[Tensor, Tensor], Tensor]]:
    """The model, all that a checkpoint of the training holds, and a function that takes a step on a batch and returns its loss."""
    model, kind, dtype = build(setup).to(device()), device().type, half(setup)
    layout = torch.channels_last if tuned and not setup.text else torch.preserve_format
    if tuned:
        model = model.to(memory_format=layout)
    run = torch.compile(model, mode=COMPILE[setup.model]) if tuned and COMPILE[setup.model] and kind == "cuda" else model
    optimizer = optimizer_of(setup, model, fused=tuned)
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16)

    def train_on(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            loss = cross_entropy(run(x.to(memory_format=layout)).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return model, {"model": model, "optimizer": optimizer, "scaler": scaler}, train_on


def timm_step(setup: Setup) -> Callable[[int], None]:
    """Source: timm's train.py, train_one_epoch, without gradient accumulation and clipping."""
    import timm
    from timm.optim import create_optimizer_v2
    from timm.utils import NativeScaler

    model, kind, dtype = timm.create_model(setup.model, num_classes=setup.classes), device().type, half(setup)
    model = model.to(device(), memory_format=torch.channels_last)
    data, loss_of = batches(setup, channels_last=True), nn.CrossEntropyLoss().to(device())
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01, momentum=0.9, weight_decay=2e-5)
    scaler = NativeScaler(device=kind) if dtype == torch.float16 else None
    model.train()

    def step(i: int) -> None:
        x, y = data[i % BATCHES]
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            loss = loss_of(model(x), y)
        if scaler is not None:
            scaler(loss, optimizer, parameters=model.parameters())
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()

    return step


def timed(step: Callable[[int], None], steps: int) -> float:
    """Seconds of `steps` steps, the device synchronised before and after."""
    synchronize()
    start = time.perf_counter()
    for i in range(steps):
        step(i)
    synchronize()
    return time.perf_counter() - start


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
