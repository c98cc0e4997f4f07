"""Copy bandwidth within one memory. Every byte counts twice: once read, once written."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from mpx.bench.tables import RATE, About, device_name, flat, notes, say
from mpx.bench.work import Row, Work, ladder, share, timed, vendors
from mpx.measure.matmul import WrongProductError
from mpx.render.picture import Picture, picture
from mpx.render.rates import Curve, rates_figure

SIZE = {"cpu": 8192, "cuda": 16384}  # size² FP32 numbers: 256 MiB and 1 GiB, which no cache holds


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per tensor, each four times as large as the one before. size: the largest holds size² FP32
    numbers.
    """
    vendor = vendors(device)
    for n in ladder(SIZE[device.type] if size == "auto" else int(size)):
        announce(f"a copy of {n}×{n} FP32 numbers")
        row = {"size": n, "mib": 4 * n * n / 2**20} | timed(partial(work, n, device), device)
        peak = vendor.bandwidth_gb_per_s if vendor else None
        yield row | {"peak_gb_per_s": peak, "share_of_peak": share(row["gb_per_s"], peak)}


def work(n: int, device: torch.device) -> Work:
    """Copies n² FP32 numbers to another tensor."""
    source = torch.randn(n, n, device=device)
    target = torch.empty_like(source)

    def error(out: torch.Tensor) -> float:
        if not torch.equal(out, source):
            raise WrongProductError("the copy differs from its source")
        return 0.0

    return Work(lambda: target.copy_(source), error, moved=2 * source.numel() * source.element_size())


def show(about: About, rows: list[Row]) -> None:
    columns = [
        ("MiB", "mib", ",.4g"),
        ("GB/s", "gb_per_s", RATE),
        ("vendor peak", "peak_gb_per_s", RATE),
        ("of peak", "share_of_peak", ".0%"),
    ]
    flat(f"Copies within the memory of {device_name(about)}", rows, columns)
    say(
        "Every byte counts twice, once read and once written; 1 GB = 10⁹ bytes. Small tensors stay in caches."
    )
    notes(about, rows, ("size",))


def plot(about: About, rows: list[Row]) -> Picture | None:
    points = [(row["mib"], row["gb_per_s"]) for row in rows if row["gb_per_s"]]
    draw = partial(rates_figure, {"": [Curve("copy, read and written bytes", points)]}, "tensor, MiB", "GB/s")
    return picture("copy", "Copy bandwidth", device_name(about), "Every byte counts twice.", draw)
