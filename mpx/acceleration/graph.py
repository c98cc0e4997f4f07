"""A whole training step as one CUDA graph: forward, backward, unscaling, clipping, masks, optimizer, loss
scale, schedule, average.

The host then launches one graph per step instead of hundreds of kernels. Recording runs the step's Python
once; replaying repeats its kernels on the same memory. Therefore each batch is copied to the memory of the
recorded one, and everything that carries over from step to step (weights, optimizer state, loss scale,
learning rate, masks) is written in place. Batches of texts have a few lengths, and each has a recording;
all recordings share their memory. Steps that a dispatch mode watches run as usual, between replays, on the
same weights. Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mpx.errors import one_line
from mpx.private.lightning import closure_result, set_closure_result
from mpx.private.torch_dispatch import dispatch_mode
from mpx.private.torch_modules import buffers, renew_generator
from mpx.settings.check import graphs_refused
from mpx.system.machine import GIB
from mpx.system.processes import from_all

Batch = tuple[Tensor, Tensor]
WARMUP = 3  # steps before the recording, which load and choose kernels, and make optimizer state and buffers
WARMUP_OF_SEVERAL = 11  # DDP builds its buckets again after the first step and times itself in the first ten
SHAPES = 8  # of batches that are recorded; those of further shapes run as usual
ROOM = 2.2  # times the memory of a step; recorded and ordinary steps each have activations of their own


def someone_watches() -> bool:
    """Whether a dispatch mode watches or replaces single operations: counting, auditing, emulating."""
    return dispatch_mode() is not None


@dataclass
class Recorded:
    """The step for batches of one shape."""

    inputs: Batch  # the memory from which the recorded step reads its batch
    warm: int = 0  # steps that have run as usual before the recording
    recording: Any = None
    version: Any = None  # of the tensors that the recording reads and writes
    result: Any = None  # Lightning's result of the recorded step; every replay overwrites its loss
    plain: bool = False  # it cannot be recorded

    def release(self) -> None:
        if self.recording is not None:
            self.recording.reset()
        self.recording = self.result = self.version = None


class StepGraph:
    """Runs training steps, most of them by replaying a recording.

    version: returns an object; when it returns another one, tensors of the step have been replaced (by a
    pruning), and the step is recorded
        again.
    required: raise UserError if the step cannot be recorded; otherwise train without a graph, and `tell` says
    why. ranks: number of processes that train together. All of them record, or none.
    """

    def __init__(
        self,
        model: nn.Module,
        version: Callable[[], Any],
        *,
        required: bool,
        tell: Callable[[str], None],
        channels_last: bool = False,
        ranks: int = 1,
        recorder: Any = None,
    ):
        self.model, self.version, self.required, self.tell, self.channels_last = (
            model,
            version,
            required,
            tell,
            channels_last,
        )
        self.ranks, self.warmup = ranks, WARMUP if ranks == 1 else WARMUP_OF_SEVERAL
        self.recorder = recorder or CudaRecorder()
        self.given_up: str | None = None
        self.recorded = self.replayed = 0  # number of recordings, of replayed steps
        self._steps: dict[tuple, Recorded] = {}  # by the shapes and types of their batches
        self._in_place: Recorded | None = None  # whose memory the step that runs now reads

    def batch(self, batch: Batch) -> Batch:
        """The batch that the step that runs now reads instead of `batch`."""
        return batch if self._in_place is None else self._in_place.inputs

    def run(
        self,
        batch: Batch,
        step: Callable[[], None],
        closure: Any,
        *,
        watched: bool,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Run one training step on `batch`. step: runs it as usual. closure: Lightning's, which gets the
        result.

        failed: called after a recording that failed, perhaps in the midst of a backward pass, on all ranks.
        """
        recorded = self._of(batch)
        if recorded is not None and recorded.recording is not None and recorded.version is not self.version():
            recorded.release()
        if recorded is None or not self._ready(recorded, watched):
            step()
            return
        for old, new in zip(recorded.inputs, batch, strict=True):
            old.copy_(new)
        if recorded.recording is None and not self._record(recorded, step, closure, failed):
            return
        recorded.recording.replay()
        self.replayed += 1
        set_closure_result(closure, recorded.result)

    def _of(self, batch: Batch) -> Recorded | None:
        """The step for batches of this shape; None for one that always runs as usual."""
        if self.given_up is not None:
            return None
        key = tuple((tensor.shape, tensor.dtype) for tensor in batch)
        if key not in self._steps and len(self._steps) < SHAPES:
            x, y = (_place(tensor, self.channels_last) for tensor in batch)
            self._steps[key] = Recorded((x, y))
        recorded = self._steps.get(key)
        return None if recorded is None or recorded.plain else recorded

    def _ready(self, recorded: Recorded, watched: bool) -> bool:
        """Whether the step can be recorded or replayed. Before the recording, on all ranks: they warm up and
        record together.
        """
        if self.ranks == 1 or recorded.recording is not None:
            return not watched
        return agreed("it is watched" if watched else None) is None

    def _record(
        self, recorded: Recorded, step: Callable[[], None], closure: Any, failed: Callable[[], None]
    ) -> bool:
        """Record the step. False if it ran as usual instead."""
        self._in_place = recorded
        try:
            if recorded.warm < self.warmup:
                self._warm_up(recorded, step)
                return False
            # a cycle that keeps an earlier autograd graph alive would tie the recorded one to its stream
            gc.collect()
            if (reason := agreed(self._try(recorded, step))) is not None:
                self._give_up(recorded, reason)
                failed()
                step()
                return False
        finally:
            self._in_place = None
        recorded.result, recorded.version = closure_result(closure), self.version()
        recorded.result.closure_loss = recorded.result.loss  # frees the recorded step's autograd graph
        self.recorded += 1
        return True

    def _try(self, recorded: Recorded, step: Callable[[], None]) -> str | None:
        """Record the step, or return why that fails."""
        recordings = (other.recording for other in self._steps.values())
        beside = next((recording for recording in recordings if recording is not None), None)
        try:
            recorded.recording = self.recorder.record(step, beside)
        except RuntimeError as error:
            return one_line(error)
        return None

    def _warm_up(self, recorded: Recorded, step: Callable[[], None]) -> None:
        recorded.warm += 1
        with Repeatable(self.model) as repeatable:
            step()
        if recorded.warm == self.warmup:
            reason = agreed(repeatable.reason or (None if self.required else self.recorder.lacks_room()))
            if reason is not None:
                self._give_up(recorded, reason)

    def _give_up(self, recorded: Recorded, reason: str) -> None:
        """Run the step as usual from now on; where no other is recorded, all steps."""
        if self.required:
            raise graphs_refused(reason)
        recorded.release()
        recorded.plain = True
        if any(other.recording is not None for other in self._steps.values()):
            shape = "×".join(map(str, recorded.inputs[0].shape))
            self.tell(f"speed: no CUDA graph for batches of {shape} ({reason})")
            return
        self.given_up = reason
        self.release()
        self.tell(f"speed: no CUDA graphs after all ({reason})")

    def release(self) -> None:
        """Free the recordings and their memory."""
        for recorded in self._steps.values():
            recorded.release()

    def restart(self) -> None:
        """The step becomes another one: warm up and record again."""
        self.release()
        self._steps.clear()

    def record(self) -> dict[str, Any]:
        """For result.json."""
        return {"recorded": self.recorded, "replayed_steps": self.replayed, "given_up": self.given_up}


def agreed(reason: str | None) -> str | None:
    """The reason of the first rank that has one, on every rank. All ranks call this at the same step."""
    reasons = from_all(reason)
    if len(reasons) == 1:
        return reason
    return next((f"on rank {rank}: {other}" for rank, other in enumerate(reasons) if other is not None), None)


def _place(value: Tensor, channels_last: bool) -> Tensor:
    """Memory for a batch. Images have the layout of the filters, so that the copy converts them."""
    layout = torch.channels_last if value.dim() == 4 and channels_last else torch.preserve_format
    return torch.empty_like(value, memory_format=layout)


class CudaRecorder:
    """Records on a side stream: the present one, on which DDP was built, or one of its own. The memory that
    the step allocates then belongs to the recordings. They share it, since they run one after another.
    """

    def record(self, step: Callable[[], None], beside: Any = None) -> torch.cuda.CUDAGraph:
        """beside: another recording, whose memory this one shares."""
        stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        pool = None if beside is None else beside.pool()
        side = None if stream == torch.cuda.default_stream() else stream
        try:
            # threads that pin batches may go on
            with torch.cuda.graph(graph, pool, side, capture_error_mode="thread_local"):
                step()
        except RuntimeError:
            torch.cuda.set_stream(stream)  # torch 2.11 stays on the side stream after a failure
            renew_generator(stream.device)
            raise
        return graph

    def lacks_room(self) -> str | None:
        """Why a second set of activations would not fit into memory; None if it would."""
        torch.cuda.synchronize()
        free, _ = torch.cuda.mem_get_info()
        kept = torch.cuda.memory_allocated()
        free += torch.cuda.memory_reserved() - kept
        needs = torch.cuda.max_memory_allocated() - kept
        if free >= ROOM * needs:
            return None
        return (
            f"a step needs {needs / GIB:.1f} GiB, and recorded it needs as much again, of which "
            f"{free / GIB:.1f} GiB are free"
        )


class Repeatable:
    """A context around one step. Afterwards `reason` says what the step did besides launching kernels; None:
    nothing was seen.

    It sees random numbers that are drawn on the CPU (stochastic depth, layer drop) and attributes of the
    model's modules that change, such as counters, and tensors that are replaced instead of written to. A step
    that waits for the device fails in the recording itself.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.reason: str | None = None
        self._before: tuple[list[np.ndarray], dict[str, Any]] = [], {}

    def __enter__(self) -> "Repeatable":
        self._before = _draws(), _attributes(self.model)
        return self

    def __exit__(self, *raised: Any) -> None:
        draws, attributes = self._before
        if any(not np.array_equal(a, b) for a, b in zip(draws, _draws(), strict=True)):
            self.reason = "the model draws random numbers on the CPU"
        elif changed := [
            name for name, value in _attributes(self.model).items() if attributes.get(name) != value
        ]:
            self.reason = f"the model changes its own attribute {changed[0]} in Python"


def _draws() -> list[np.ndarray]:
    _, keys, position, *_ = np.random.get_state(legacy=True)
    return [torch.get_rng_state().numpy(), np.array(random.getstate()[1]), np.append(keys, position)]


def _attributes(model: nn.Module) -> dict[str, Any]:
    """The attributes of all modules: plain values by their text, by which NaN equals NaN, and tensors by
    identity and address.
    """
    attributes: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in (vars(module) | buffers(module)).items():
            if isinstance(value, Tensor):
                attributes[f"{name}.{key}"] = (id(value), value.data_ptr())
            elif value is None or isinstance(value, (bool, int, float, str)):
                attributes[f"{name}.{key}"] = repr(value)
    return attributes
