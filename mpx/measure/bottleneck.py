"""Decide what limits the speed of a run, from measured figures alone.

A step takes at least as long as each of these: waiting for its batch (input), launching every operation from
the host (launch overhead), and computing on the device, which multiplies matrices (arithmetic) or moves data
(memory). A narrower format makes the arithmetic faster and halves the bytes. It does not change input and
launch overhead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

IDLE = 0.25  # share of a step; a device that idles longer gains little from faster arithmetic
MOSTLY = 0.5  # of the idle time: waiting for batches; of the computing: products of matrices
FEW_CORES = 0.8  # share of the time in products; if less of it is on Tensor Cores, the sentence says so


@dataclass(frozen=True)
class Step:
    """A training step. Times are in milliseconds."""

    on_gpu: bool
    step_ms: float  # without a profiler
    waited_share: float | None  # of the step: the host waits for the batch; None: a loader that is not timed
    busy_ms: float  # the device computes; on a CPU: inside operations
    launches: float | None  # kernels and copies; None on a CPU
    products: float  # share of the time in operations: those that multiply matrices
    tensor_cores: float  # the same, of those on Tensor Cores

    @property
    def idle(self) -> float:
        """The share of the step in which the device does not compute."""
        return max(0.0, 1 - self.busy_ms / self.step_ms)


def bottleneck(step: Step, mode: str, *, emulated: bool, against: Mapping[str, str]) -> tuple[str, str]:
    """(what limits the run, a sentence that says so and what to do).

    mode: the precision. against: why cuda_graphs or compile cannot be advised.
    """
    if emulated:
        return "emulation", (
            f"precision={mode} is emulated here: these speeds are not those of hardware that has it."
        )
    waited = step.waited_share or 0.0
    if step.idle > IDLE and waited > MOSTLY * step.idle:
        return "input", (
            f"Limited by input: waiting for the batch takes {waited:.0%} of a step. Use "
            "data.loader=resident, or more "
            "data.workers. A narrower format does not help."
        )
    if step.idle > IDLE:
        return "launch overhead", _launching(step, against)
    if step.products > MOSTLY:
        return "arithmetic", _multiplying(step, mode)
    advice = "" if "compile" in against else " trainer.compile=default joins such operations."
    return "memory", (
        f"Limited by memory: {1 - step.products:.0%} of the computing moves data and multiplies no "
        "matrices. A 16-bit format "
        f"halves the bytes.{advice}"
    )


def _launching(step: Step, against: Mapping[str, str]) -> str:
    graphs = "" if "cuda_graphs" in against or not step.on_gpu else "trainer.cuda_graphs=true or "
    what = (
        f"{step.launches:,.0f} kernels and copies" if step.launches is not None else ("many short operations")
    )
    unknown = " The loader's waits are not timed and may be part of it." if step.waited_share is None else ""
    return (
        f"Limited by launch overhead: the device computes in {1 - step.idle:.0%} of a step, in which the "
        f"host launches {what}."
        f"{unknown} Use {graphs}a larger batch. A narrower format does not help."
    )


def _multiplying(step: Step, mode: str) -> str:
    said = f"Limited by arithmetic: products of matrices take {step.products:.0%} of the computing"
    if not step.on_gpu:
        return f"{said}. Use a narrower format that this CPU multiplies faster, or a smaller model."
    cores = step.tensor_cores / step.products
    if cores < FEW_CORES:
        return (
            f"{said}, and only {cores:.0%} of that is on Tensor Cores. Use precision=amp, and sizes "
            "that are multiples of 8."
        )
    return (
        f"{said}, {cores:.0%} of it on Tensor Cores, in precision={mode}. A narrower format makes it faster."
    )
