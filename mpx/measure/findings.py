"""The profile part of result.json: the times of one step, its operations, and its bottleneck."""

from dataclasses import dataclass, field, fields
from typing import Any

from mpx.measure.bound import Evidence, Undisturbed, alignment, decide, times
from mpx.measure.limits import Limits
from mpx.measure.operations import Operation, of_kernels
from mpx.measure.trace import Busy

RECORDED = (  # fields of Evidence; the others are for the sentence alone
    "step_ms", "busy_ms", "waited_ms", "launches", "arithmetic_ms", "memory_ms", "products_ms", "cores_ms",
    "arithmetic_roofline", "memory_roofline", "misaligned_share", "misaligned_size", "loader", "replayed", "compiled", "emulated",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Seen(Undisturbed):
    """The measurements of a profile. operations, layers: of a plain step."""

    traced: Busy | None  # `steps` steps together; None on a CPU
    steps: int
    replayed: int  # how many of these a CUDA graph replayed
    operations: list[Operation]
    layers: list[Operation] = field(default_factory=list)
    accumulated: int = 1  # batches of an optimizer step
    updates: bool = True  # whether the batch of `operations` was the last of them

    @property
    def busy_ms(self) -> float:
        """The busy time of one step. A compiled step on a CPU shows no operations, so all of it but the wait for the batch counts."""
        if self.traced is not None:
            return self.traced.busy_ms / self.steps
        return max(0.0, self.step_ms - self.waited_ms) if self.compiled else sum(row.ms for row in self.operations)

    @property
    def rows(self) -> list[Operation]:
        """The kernels of a compiled step, which are not those of a plain step; else the operations."""
        return of_kernels(self.traced.kernels, self.steps) if self.compiled and self.traced is not None else self.operations


def findings(seen: Seen, limits: Limits) -> dict[str, Any]:
    rows, traced = seen.rows, seen.traced
    total = sum(row.ms for row in rows)
    evidence = Evidence(
        **{part.name: getattr(seen, part.name) for part in fields(Undisturbed)},
        busy_ms=seen.busy_ms,
        launches=round(traced.launches / seen.steps) if traced is not None else None,
        replayed=seen.replayed > 0,
        **times(rows),
        **alignment(seen.layers),
    )
    verdict = decide(evidence)
    found = {"bound": verdict.bound, "sentence": verdict.sentence, "traced_steps": seen.steps, "steps": in_words(seen)}
    found |= {"rows": "operations" if rows is seen.operations else "kernels", "idle_fraction": evidence.idle}
    found |= {name: getattr(evidence, name) for name in RECORDED}
    found["longest_gap_ms"] = traced.longest_gap_ms if traced is not None else None
    if traced is None:
        found["longest_gap_ms_reason"] = found["launches_reason"] = "only the kernels of a CUDA device show gaps"
    found |= {"limits": limits.source, "limits_reason": limits.reason}
    found["limit_gb_per_s"] = limits.bytes_per_s / 1e9 if limits.bytes_per_s else None
    found["limit_tflops_per_s"] = {fmt: rate / 1e12 for fmt, rate in limits.flops_per_s.items()}
    found |= {"layers": [_layer(row) for row in seen.layers if row.fmt is not None and row.moved]}
    return found | {"operations": [_row(row, total, limits) for row in rows]}


def _layer(row: Operation) -> dict[str, Any]:
    """A point of the roofline plot."""
    about = {"operation": row.name, "format": row.fmt, "calls": row.calls}
    return about | {"flops_per_byte": row.flops / row.moved, "tflops_per_s": row.flops / row.ms / 1e9}


def _row(row: Operation, total: float, limits: Limits) -> dict[str, Any]:
    found = {"operation": row.name, "calls": row.calls, "ms": row.ms, "share": row.ms / total, "format": row.fmt}
    found |= {"tensor_cores": row.tensor_cores, "gflop": row.flops / 1e9, "mib": row.moved / 2**20}
    found |= {"roofline": row.roofline, "limit": row.bound}
    if row.roofline is None:
        shapeless = not row.flops and not row.moved
        reason = limits.reason or f"no limit known for {row.fmt}"
        found["roofline_reason"] = "a compiled kernel tells no shapes" if shapeless else reason
    return found | {"kernels": sorted(row.kernels)}


def in_words(seen: Seen) -> str:
    """What the listed steps were, in words."""
    if seen.accumulated == 1 or seen.rows is not seen.operations:
        return _steps(seen)
    which = "with" if seen.updates else "without"
    return f"{_steps(seen)}; the operations are of a batch {which} the optimizer's step, which follows every {seen.accumulated} batches"


def _steps(seen: Seen) -> str:
    kind = "compiled" if seen.compiled else "plain"
    if seen.compiled and seen.traced is None:
        return "a plain step: a compiled one does not tell its operations on a CPU"
    if seen.replayed == 0:
        return f"{seen.steps} {kind} steps"
    recorded = f"{seen.replayed} steps replayed from a CUDA graph" + (" of compiled code" if seen.compiled else "")
    return recorded if seen.replayed == seen.steps else f"{recorded} and {seen.steps - seen.replayed} {kind} ones"
