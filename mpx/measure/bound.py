"""Decide what limits the speed of a run, from measured figures alone.

A step takes at least as long as each of these: waiting for its batch (input), launching every operation from the host (launch overhead),
and computing on the device, which is limited by how much it moves (memory) or how much it calculates (arithmetic). A narrower format makes
the arithmetic faster and halves the bytes. It does not change input and launch overhead.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mpx.measure.operations import Operation

IDLE = 0.25  # share of a step; a device that idles longer gains little from faster arithmetic
MOSTLY_INPUT = 0.5  # share of the idle time; if waiting for batches takes more, the input is the cause
FAR_BELOW_LIMIT = 0.3  # share of the limit; an operation below it is slow for another reason
LARGE_PRODUCT = 10**9  # floating point operations; on a fast GPU, of a smaller product most time is its start
MISALIGNED = 0.2  # share of the time in products; likewise for matrices whose rows Tensor Cores read slowly
NO_TENSOR_CORES = 0.2  # share of the time in products; if more of it is without Tensor Cores, the sentence says so


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A training step without a profiler. Times are in milliseconds."""

    on_gpu: bool
    step_ms: float
    waited_ms: float  # the host's waiting for the batch
    loader: str  # resident or workers
    mode: str  # precision
    compiled: bool = False
    emulated: bool = False  # the precision, operation by operation
    native: frozenset[str] = frozenset()  # precisions that the device has in hardware; others would be emulated, which is slower
    devices: int = 1  # that train together
    no_graphs: str | None = None  # why CUDA graphs are not advised; None if they are
    no_compiling: str | None = None  # the same for torch.compile
    own: bool = False  # a module of the user's own, with loaders of its own


@dataclass(frozen=True, kw_only=True)
class Evidence(Undisturbed):
    """The figures that decide: the step, and its profile."""

    busy_ms: float  # the device's computing; on a CPU: inside operations
    launches: int | None  # kernels and copies; None on a CPU
    arithmetic_ms: float  # part of busy_ms: in operations that are limited by arithmetic
    memory_ms: float  # part of busy_ms: in operations that are limited by memory traffic
    products_ms: float  # part of busy_ms: in operations that multiply matrices
    cores_ms: float | None  # part of products_ms: on Tensor Cores; None: unknown
    arithmetic_roofline: float | None  # share of the device's limit that operations limited by arithmetic reach
    memory_roofline: float | None  # the same of operations limited by memory traffic
    replayed: bool = False  # from a CUDA graph
    misaligned_share: float = 0.0  # of the time in products of a plain step: those of 16-bit matrices with Operation.misaligned
    misaligned_size: int | None = None  # that of most of this time

    @property
    def may_compile(self) -> bool:
        return not self.compiled and self.no_compiling is None

    @property
    def larger_batch(self) -> str:
        return "a larger batch" if self.own else "a larger data.batch_size"

    @property
    def idle(self) -> float:
        """The share of the step in which the device does not compute."""
        return max(0.0, 1 - self.busy_ms / self.step_ms)


@dataclass(frozen=True)
class Verdict:
    bound: str  # input, launch overhead, memory, arithmetic, or emulation
    sentence: str


def times(rows: Iterable[Operation]) -> dict[str, float | None]:
    """The fields of Evidence that follow from a step's operations. If an operation's limit is unknown, products count as arithmetic and
    others as memory. Communication with other devices counts as neither."""
    rows = [row for row in rows if not row.name.startswith("c10d.")]
    parts = {bound: [row for row in rows if (row.bound or _guess(row)) == bound] for bound in ("arithmetic", "memory")}
    found = {f"{bound}_ms": sum(row.ms for row in part) for bound, part in parts.items()}
    found |= {f"{bound}_roofline": _roofline(part) for bound, part in parts.items()}
    products = [row for row in rows if row.multiplies]
    seen = [row for row in products if row.tensor_cores is not None]
    cores = sum(row.ms for row in seen if row.tensor_cores) if seen else None
    return found | {"products_ms": sum(row.ms for row in products), "cores_ms": cores}


def _guess(row: Operation) -> str:
    return "arithmetic" if row.multiplies else "memory"


def _roofline(rows: list[Operation]) -> float | None:
    known = [row for row in rows if row.least_ms is not None]
    total = sum(row.ms for row in known)
    return sum(row.least_ms for row in known) / total if total else None


def decide(seen: Evidence) -> Verdict:
    """If the device is busy, the host is not the limit: a waiting host may be waiting for the device."""
    if seen.emulated:
        return Verdict("emulation", f"Held back by emulation: {_emulation(seen)}")
    if seen.idle >= IDLE:
        if seen.waited_ms >= MOSTLY_INPUT * seen.idle * seen.step_ms:
            return Verdict("input", f"Held back by input: {_input(seen)}")
        return Verdict("launch overhead", f"Held back by launch overhead: {_launches(seen)}")
    if seen.memory_ms > seen.arithmetic_ms:
        return Verdict("memory", f"Held back by memory: {_memory(seen)}{_padding(seen)}")
    return Verdict("arithmetic", f"Held back by arithmetic: {_arithmetic(seen)}{_padding(seen)}")


def alignment(layers: Iterable[Operation]) -> dict[str, float | int | None]:
    """The fields of Evidence that follow from the products of a plain step, one row for each shape. Small ones count as aligned."""
    ms: dict[int | None, float] = {}
    for row in layers:
        size = row.misaligned if row.flops >= LARGE_PRODUCT * row.calls else None
        ms[size] = ms.get(size, 0.0) + row.ms
    total, aligned = sum(ms.values()), ms.pop(None, 0.0)
    share = 1 - aligned / total if total else 0.0
    return {"misaligned_share": share, "misaligned_size": max(ms, key=ms.get, default=None)}


def _padding(seen: Evidence) -> str:
    if not seen.on_gpu or seen.misaligned_share < MISALIGNED:
        return ""
    size, step = seen.misaligned_size, " of an uncompiled step" if seen.compiled else ""
    return (
        f" {seen.misaligned_share:.0%} of the time in products{step} goes to 16-bit matrices whose rows, as of {size:,} numbers, are no "
        f"multiple of 8, which Tensor Cores take longer for; pad such a size, as to {size + -size % 8:,}."
    )


def _emulation(seen: Evidence) -> str:
    return (
        f"this device has no precision={seen.mode} of its own, so every operation is computed in FP32 and rounded, much of it in Python, "
        f"and the times above say nothing about {seen.mode}; profile it where it is native, or look at precision=fp32 here."
    )


def _input(seen: Evidence) -> str:
    share = min(1.0, seen.waited_ms / seen.step_ms)
    advice = "more data.workers, or data.loader=resident if the data fit into memory" if seen.loader == "workers" else "data.augment=none"
    advice, loader = ("more workers of its DataLoader", "") if seen.own else (advice, f" (data.loader={seen.loader})")
    return f"{share:.0%} of a step's {seen.step_ms:.3g} ms is waiting for the batch{loader}, which no precision shortens; try {advice}."


def _launches(seen: Evidence) -> str:
    if not seen.on_gpu:
        where = "in Python" if seen.devices == 1 else "in Python and in waiting for the other processes' gradients"
        return (
            f"{seen.idle:.0%} of a step's {seen.step_ms:.3g} ms passes between the operations, {where}, which no precision shortens; "
            f"try {seen.larger_batch}, or a larger model."
        )
    each = f"{1e3 * seen.busy_ms / seen.launches:.3g} µs" if seen.launches else "little"
    advice = seen.larger_batch
    if seen.no_graphs is not None and not seen.replayed:
        advice += f" (CUDA graphs, which launch a whole step at once, are no way out: {seen.no_graphs})"
    elif not seen.replayed:
        advice = f"trainer.cuda_graphs=true, which launches a whole step at once, or {advice}"
    return (
        f"the GPU is idle for {seen.idle:.0%} of a step's {seen.step_ms:.3g} ms while the host prepares {seen.launches} kernels of "
        f"{each} each on average, and a faster format shortens only the other {1 - seen.idle:.0%}; try {advice}."
    )


def _memory(seen: Evidence) -> str:
    total = seen.memory_ms + seen.arithmetic_ms
    begin = f"{seen.memory_ms / total:.0%} of the time in operations goes to operations that move more than they calculate"
    if _far(seen.memory_roofline):
        return f"{begin}, yet at {seen.memory_roofline:.0%} of the memory's limit: {_too_small(seen)}"
    reached = f", at {seen.memory_roofline:.0%} of the memory's limit" if seen.memory_roofline is not None else ""
    tries = ["trainer.compile=default, which fuses such operations"] if seen.may_compile else []
    if seen.mode in ("fp32", "tf32", "o0"):
        tries += [f"precision={mode}, which moves fewer bytes" for mode in _native(seen, "amp_bf16", "amp")[:1]]
    elif seen.mode in ("amp", "amp_bf16", "o1"):
        tries += [f"precision={mode}, which keeps all activations and weights in 16 bits" for mode in _native(seen, "bf16_true")]
    advice = ", or ".join(tries) or "a model with fewer elementwise layers: little else is left"
    faster = "Tensor Cores do" if seen.on_gpu else "faster arithmetic does"
    return f"{begin}{reached}, which {faster} not speed up; try {advice}."


def _native(seen: Evidence, *modes: str) -> list[str]:
    """Those of `modes` that this device has in hardware."""
    return [mode for mode in modes if mode in seen.native]


def _either(seen: Evidence, *modes: str) -> str:
    return " or ".join(", ".join(_native(seen, *modes)).rsplit(", ", 1))


def _far(roofline: float | None) -> bool:
    return roofline is not None and roofline < FAR_BELOW_LIMIT


def _too_small(seen: Evidence) -> str:
    tries = f"{seen.larger_batch} or a larger model" + (", or trainer.compile=default" if seen.may_compile else "")
    return f"they are too small, or their kernels too slow, to reach it, which no precision changes by itself; try {tries}."


def _arithmetic(seen: Evidence) -> str:
    total = seen.memory_ms + seen.arithmetic_ms
    reached = f", at {seen.arithmetic_roofline:.0%} of the limit of their format" if seen.arithmetic_roofline is not None else ""
    begin = f"{seen.arithmetic_ms / total:.0%} of the time in operations goes to matrix products, convolutions and the like{reached}"
    if not seen.on_gpu:
        return _on_a_cpu(seen, begin)
    known = seen.cores_ms is not None and seen.products_ms > 0
    without = 1 - seen.cores_ms / seen.products_ms if known else 0.0
    cores = f"{begin}, {1 - without:.0%} of it on Tensor Cores" if known else begin
    if seen.mode in ("fp32", "o0"):
        return f"{cores}; {'for that ' if known else ''}try precision={_either(seen, 'amp', 'amp_bf16', 'tf32')}."
    if without >= NO_TENSOR_CORES:
        return f"{begin}, and {without:.0%} of it runs without Tensor Cores; try sizes (channels, hidden sizes) that are multiples of 8."
    if seen.mode == "tf32":
        return f"{cores}, so this is where a faster format pays; try precision={_either(seen, 'amp', 'amp_bf16')}."
    if seen.mode == "fp8" or "fp8" not in seen.native:
        return f"{cores}, and this device has no faster format; try larger layers or {seen.larger_batch}."
    return f"{cores}, so this is where a faster format pays; try precision=fp8 for linear layers of 2,048 features or more."


def _on_a_cpu(seen: Evidence, begin: str) -> str:
    compiling = ["trainer.compile=default"] if seen.may_compile else []
    if seen.mode in ("fp32", "o0"):
        tries = [f"precision={mode}" for mode in _native(seen, "amp_bf16")] + compiling
        return f"{begin}; try {', or '.join(tries)}." if tries else f"{begin}, so a smaller model is what is left."
    if _far(seen.arithmetic_roofline):
        return f"{begin}: {_too_small(seen)}"
    return f"{begin}, so a smaller model is what is left" + ("; try trainer.compile=default first." if compiling else ".")
