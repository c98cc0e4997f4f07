"""Loops without a framework: the libraries' own models, inputs ready on the device, nothing logged, nothing
saved.

`hand` is what an expert would write: autocast, GradScaler, fused optimizer, channels_last, torch.compile, and
the whole step in one CUDA graph. `loop` is the plain eager loop. `timm` is the step of timm's train.py: its
model, optimizer and NativeScaler, with its flags --amp
--channels-last --torchcompile --opt-kwargs fused=True. cuDNN times its algorithms for all of them.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
from collecting import bert_without_mask
from setups import Setup, device
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls

# Dynamo leaves out nn.LSTM, for which cuDNN has kernels of its own
COMPILED = ("resnet50", "resnet18", "bert_small")
BATCHES, WARMUP, BEFORE_RECORDING = 4, 12, 3  # steps
Step = Callable[[Tensor, Tensor], Tensor]  # takes a step on a batch (x, y), returns its loss


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


class OneType(nn.Module):
    """The row of token type 0 instead of a look-up for each token, whose gradient is a sum over all tokens
    into one row.
    """

    def __init__(self, table: nn.Embedding):
        super().__init__()
        self.weight = table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[0]


def bert(setup: Setup, *, look_up: bool = True) -> nn.Module:
    """transformers' classifier. look_up: the type of each token, as it comes; else the types, all 0, are
    added as one row, as in mpx.
    """
    from transformers import BertConfig, BertForSequenceClassification

    bert_without_mask()
    config = BertConfig(
        vocab_size=setup.vocabulary, hidden_size=setup.hidden, num_hidden_layers=setup.layers,
        num_attention_heads=setup.hidden // 64, intermediate_size=4 * setup.hidden, num_labels=setup.classes,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    if not look_up:
        model.bert.embeddings.token_type_embeddings = OneType(model.bert.embeddings.token_type_embeddings)
    return model


def build(setup: Setup, *, look_up: bool = True) -> nn.Module:
    """look_up: as in `bert`."""
    if setup.model == "lstm":
        return LSTM(setup.hidden, setup.vocabulary, setup.classes)
    if setup.text:
        return Logits(bert(setup, look_up=look_up))
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
        capturable = fused and device().type == "cuda"
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None, capturable=capturable)
    how = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    return torch.optim.SGD(model.parameters(), lr=0.01, fused=fused or None, **how)


def half(setup: Setup) -> torch.dtype | None:
    """Autocast's format; a CPU has no FP16 worth the name, and trains in FP32 there, which is no measurement
    of anything.
    """
    wanted = MODES[setup.precision].autocast
    return None if device().type == "cpu" and wanted == torch.float16 else wanted


@contextmanager
def searching(setup: Setup) -> Iterator[None]:
    """Inside, FP32 operands multiply as the mode has it, and cuDNN times its algorithms."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        with float32_matmuls(MODES[setup.precision], emulate=False):
            yield
    finally:
        torch.backends.cudnn.benchmark = before


class Loop:
    """Keeps its model between its windows. kind: `hand`, `hand, types looked up`, `loop` or `timm`. `note`
    says what it is.
    """

    def __init__(self, setup: Setup, kind: str):
        self.setup, self.kind, self.tuned = setup, kind, kind.startswith("hand")
        compiled = "compiled, " if setup.model in COMPILED else ""
        self.note = {"loop": "eager", "timm": "compiled"}.get(kind, f"{compiled}one CUDA graph")
        self.train_on: Step | None = None

    def samples_per_s(self) -> float:
        setup, data = self.setup, batches(self.setup, channels_last=self.kind != "loop")
        with searching(setup):
            if self.train_on is None:
                self.train_on = self._training()
            # anew, so that others have its memory between
            step = recorded(self.train_on, data[0]) if self.tuned else self.train_on
            timed(step, data, WARMUP)
            return setup.batch * setup.steps / timed(step, data, setup.steps)

    def _training(self) -> Step:
        if self.kind == "timm":
            return timm_training(self.setup)
        return training(self.setup, tuned=self.tuned, look_up=self.kind != "hand")[1]


def training(
    setup: Setup, *, tuned: bool, compiled: bool = True, look_up: bool = True
) -> tuple[nn.Module, Step]:
    """The model, and a function that takes a step on a batch and returns its loss.

    compiled: whether a tuned loop compiles. look_up: as in `bert`.
    """
    model, kind, dtype = build(setup, look_up=look_up).to(device()), device().type, half(setup)
    layout = torch.channels_last if tuned and not setup.text else torch.preserve_format
    if tuned:
        model = model.to(memory_format=layout)
    optimizer = optimizer_of(setup, model, fused=tuned)
    # torch.optim.SGD(fused=True) leaves its momentum uninitialised if the first step overflows, as with the
    # default scale of 65,536.
    scaler = torch.amp.GradScaler(kind, init_scale=1024, enabled=dtype == torch.float16)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x).float(), y)

    compiles = tuned and compiled and setup.model in COMPILED and kind == "cuda"
    run = torch.compile(loss_of) if compiles else loss_of

    def train_on(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            loss = run(x.to(memory_format=layout), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return model, train_on


def recorded(train_on: Step, batch: tuple[Tensor, Tensor]) -> Step:
    """`train_on` recorded as one CUDA graph, the optimizer included; each replay overwrites the loss. Takes a
    few steps on `batch` first.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture
    """
    if device().type != "cuda":
        return train_on
    layout = torch.channels_last if batch[0].dim() == 4 else torch.preserve_format
    inputs = [torch.empty_like(batch[0], memory_format=layout).copy_(batch[0]), batch[1].clone()]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(BEFORE_RECORDING):
            train_on(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        loss = train_on(*inputs)

    def replay(x: Tensor, y: Tensor) -> Tensor:
        inputs[0].copy_(x)
        inputs[1].copy_(y)
        graph.replay()
        return loss

    return replay


def timm_training(setup: Setup) -> Step:
    """Source: timm's train.py, train_one_epoch, without gradient accumulation and clipping."""
    import timm
    from timm.optim import create_optimizer_v2
    from timm.utils import NativeScaler

    model, kind, dtype = timm.create_model(setup.model, num_classes=setup.classes), device().type, half(setup)
    model, loss_of = model.to(device(), memory_format=torch.channels_last), nn.CrossEntropyLoss().to(device())
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01, momentum=0.9, weight_decay=2e-5, fused=True)
    scaler = NativeScaler(device=kind) if dtype == torch.float16 else None
    run = torch.compile(model) if kind == "cuda" else model
    model.train()

    def train_on(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            loss = loss_of(run(x), y)
        if scaler is not None:
            scaler(loss, optimizer, parameters=model.parameters())
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_on


def timed(step: Step, data: list[tuple[Tensor, Tensor]], steps: int) -> float:
    """Seconds of `steps` steps, the device synchronised before and after."""
    synchronize()
    start = time.perf_counter()
    for i in range(steps):
        step(*data[i % BATCHES])
    synchronize()
    return time.perf_counter() - start


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
