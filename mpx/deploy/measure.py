"""Latency and throughput of a served model, and its accuracy on the test set."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from mpx.data.datamodule import choose_loader
from mpx.data.loaders import EvalLoader
from mpx.data.readers import ResidentReader, WorkerReader
from mpx.data.splits import Images, Texts, Windows
from mpx.measure.timing import median_time
from mpx.spec import Spec
from mpx.training.meters import Meters

BUDGET_S = 1.0  # seconds for the latency, and for the throughput, of one batch size
MIN_CALLS, MAX_CALLS = 10, 2000  # calls whose latency is measured
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
Call = Callable[[Tensor], Tensor]
Split = Images | Texts | Windows


def throughput(call: Call, x: Tensor) -> float:
    """Samples per second of calls in a row. Each starts as soon as the device is free."""
    return len(x) / median_time(lambda: call(x), x.device, BUDGET_S).seconds


def latency(call: Call, x: Tensor) -> dict[str, float | int]:
    """Percentiles in ms of single calls, from the input on the device to the result on the device. Each call is waited for."""
    times, end = [], time.perf_counter() + BUDGET_S
    while len(times) < MIN_CALLS or (len(times) < MAX_CALLS and time.perf_counter() < end):
        start = time.perf_counter()
        call(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        times.append((time.perf_counter() - start) * 1e3)
    found = torch.tensor(times, dtype=torch.float64).quantile(torch.tensor(list(PERCENTILES.values()), dtype=torch.float64)).tolist()
    return {f"latency_ms_{name}": value for name, value in zip(PERCENTILES, found, strict=True)} | {"latency_calls": len(times)}


def relative_error(found: Tensor, reference: Tensor) -> float | None:
    """‖found − reference‖ ÷ ‖reference‖; None if that is not finite."""
    error = ((found.double() - reference.double()).norm() / reference.double().norm()).item()
    return error if math.isfinite(error) else None


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics as JSON can hold them: None in place of infinities and NaN."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


class Samples:
    """A split of a data set on `device`, as a context, since it may have worker processes. seed: of the training data's augmentation."""

    def __init__(self, split: Split, spec: Spec, settings: dict[str, Any], device: torch.device, seed: int = 0):
        self.spec, self.split, self.device = spec, split, device
        loader, _ = choose_loader(settings["loader"], split.nbytes, device)
        reader, how = (ResidentReader, ()) if loader == "resident" else (WorkerReader, (settings["workers"],))
        self.reader = reader(split, seed, device, *how)

    def __len__(self) -> int:
        return len(self.split)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sample once, in batches of `size` and a smaller last one."""
        return iter(EvalLoader(self.reader, len(self.split), size))

    def batch(self, size: int) -> Tensor:
        """The inputs of the first `size` samples, which repeat if there are fewer."""
        return next(iter(self.reader.batches(0, [torch.arange(size) % len(self.split)])))[0]

    def evaluate(self, call: Call, size: int, stage: str = "test") -> dict[str, float]:
        """The metrics that training logs in this stage, in batches of `size` and a smaller last one."""
        meters = Meters(self.spec.task, self.spec.classes).to(self.device)
        for x, y in self.batches(size):
            meters.add(call(x), y)
        return {f"{stage}/{name}": value.item() for name, value in meters.take(self.spec.kind).items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.close()
