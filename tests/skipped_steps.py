"""Which training steps of a network are skipped, natively and emulated, and how far apart the scales are at
which gradients overflow.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from random_networks import Network
from torch import Tensor

from mpx.precision.emulate import Emulate
from mpx.precision.scaling import LossScale


def native(device: str) -> AbstractContextManager:
    return torch.autocast(device, dtype=torch.float16, cache_enabled=False)


def emulated(device: str) -> AbstractContextManager:
    return Emulate("fp16")


def exact(device: str) -> AbstractContextManager:
    return nullcontext()


def backward(network: Network, context: Callable, scale: float | Tensor) -> None:
    network.model.zero_grad()
    with context(network.device):
        loss = network.loss(network.model(network.x))
    # autocast ends with the forward pass
    with emulated(network.device) if context is emulated else nullcontext():
        (loss * scale).backward()


def gradients(network: Network) -> list[Tensor]:
    found = [parameter.grad for parameter in network.model.parameters() if parameter.grad is not None]
    return [gradient._values() if gradient.is_sparse else gradient for gradient in found]


def overflows(network: Network, context: Callable, scale: float) -> bool:
    backward(network, context, scale)
    return not all(bool(gradient.isfinite().all()) for gradient in gradients(network))


def threshold(
    network: Network, context: Callable, low: float = -40.0, high: float = 60.0, within: float = 1.0
) -> float:
    """log2 of the scale from which gradients overflow, at most `within` too high; -inf and inf where they do,
    or do not, at any scale.
    """
    if overflows(network, context, 2.0**low):
        return -math.inf
    if not overflows(network, context, 2.0**high):
        return math.inf
    while high - low > within:
        middle = (low + high) / 2
        low, high = (low, middle) if overflows(network, context, 2.0**middle) else (middle, high)
    return high


def trained(network: Network, context: Callable, initial: float, steps: int) -> tuple[Network, list[bool]]:
    """A copy after so many steps, and which of them were skipped: by torch.amp.GradScaler natively, by
    LossScale emulated.

    The scale grows after every two steps that were taken, so that it comes back to where gradients overflow.
    Steps are so short that the rounding of one hardly changes the next.
    """
    network = network.to(network.device)
    backward(network, exact, 1.0)
    rate = 1e-3 / max(1e-30, *(gradient.norm().item() for gradient in gradients(network)))
    optimizer, skipped = torch.optim.SGD(network.model.parameters(), lr=rate), []
    ours = LossScale(network.device, initial=initial, growth_interval=2, ceiling=math.inf)
    theirs = torch.amp.GradScaler(network.device, init_scale=initial, growth_interval=2)
    one = torch.ones((), device=network.device)
    for _ in range(steps):
        if context is native:
            backward(network, context, theirs.scale(one))
            before = theirs.get_scale()
            theirs.step(optimizer)
            theirs.update()
            skipped.append(theirs.get_scale() < before)
        else:
            backward(network, context, ours.scale_loss(one))
            ours.unscale_(
                parameter.grad for parameter in network.model.parameters() if parameter.grad is not None
            )
            ours.step(optimizer)
            skipped.append(bool(ours.found_inf))
            ours.update()
    return network, skipped


@dataclass
class Comparison:
    """apart: where other steps were skipped, how many octaves there are between the scales at which either
    overflows there.
    """

    network: Network
    native: list[bool]
    emulated: list[bool]
    apart: float = 0.0

    @property
    def same(self) -> bool:
        return self.native == self.emulated

    @property
    def explained(self) -> bool:
        """Whether the scale at which they differ lies where the rounding of a few sums decides."""
        return self.same or self.apart < 0.05

    def __str__(self) -> str:
        return (
            f"skipped {self.native} natively, {self.emulated} emulated; {self.apart:.3f} octaves apart. "
            f"{self.network}"
        )


def compare(network: Network, steps: int = 8) -> Comparison:
    """From two octaves above where gradients overflow natively; from 1 where they always do, or never."""
    start = threshold(network, native)
    initial = 2.0 ** (math.ceil(start) + 2) if math.isfinite(start) else 1.0
    skipped = [trained(network, context, initial, steps)[1] for context in (native, emulated)]
    found = Comparison(network, *skipped)
    if not found.same:
        first = next(step for step, (a, b) in enumerate(zip(*skipped, strict=True)) if a != b)
        there = [
            threshold(trained(network, context, initial, first)[0], context, within=1 / 256)
            for context in (native, emulated)
        ]
        found.apart = abs(there[0] - there[1])
    return found
