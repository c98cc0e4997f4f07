"""The two loaders that Lightning sees. A reader makes their batches, on the device or in worker processes
(readers.py).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from mpx.data.lengths import Lengths
from mpx.data.order import eval_batches, train_steps
from mpx.errors import UserError
from mpx.system.printing import how_many

Batch = tuple[Tensor, Tensor]  # x, y as Spec says, on the device


def full_batches(count: int, batch_size: int, world: int) -> int:
    """Full batches per epoch for each of `world` devices that share `count` samples. Raises UserError if
    there are none.
    """
    if not (batches := count // world // batch_size):
        raise UserError(
            f"data.batch_size={batch_size} on {how_many(world, 'device')} needs {batch_size * world} train "
            f"samples but there are {count}: "
            f"lower data.batch_size to at most {count // world} or use fewer devices"
        )
    return batches


class TrainLoader:
    """Shuffled full batches of this rank. The order depends on (seed, epoch) only, so a resumed run continues
    with the exact next batch.

    Lightning makes the iterator before it calls `set_epoch`, so the epoch is read when the first batch is
    asked for.
    """

    def __init__(
        self, reader, count: int, batch_size: int, seed: int, rank: int = 0, world: int = 1,
        lengths: Lengths | None = None,
    ):  # fmt: skip
        self.lengths = lengths
        self.allowed = _order_of(None if lengths is None else lengths.allowed)
        self.reader, self.count, self.batch_size = reader, count, batch_size
        self.seed, self.rank, self.world = seed, rank, world
        self.epoch = 0
        self.position = 0  # batches handed out in this epoch
        self._mark: Callable[[], Any] = lambda: None  # see time_waits
        self._waits: list[tuple[Any, Any]] = []
        self._start = 0  # first batch of the next pass
        # (epoch, first batch) -> its batches, before the first is taken
        self._drawn: dict[tuple[int, int], Iterator[Batch]] = {}
        self.sampler = self  # Lightning calls set_epoch of `.sampler`
        self.batches = full_batches(count, batch_size, world)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        asked = self._mark()
        self.position, self._start = self._start, 0
        batches = self._drawn.pop((self.epoch, self.position), None) or self._draw(self.epoch, self.position)
        while (batch := next(batches, None)) is not None:
            self.position += 1
            # draw the next epoch while the GPU still has steps of this one to run
            if self.position == self.batches:
                self._drawn = {(self.epoch + 1, 0): self._draw(self.epoch + 1, 0)}
            if asked is not None:
                self._waits.append((asked, self._mark()))
            yield batch
            asked = self._mark()

    def _draw(self, epoch: int, position: int) -> Iterator[Batch]:
        """The batches of `epoch` from number `position` on."""
        size = self.batch_size * self.world
        if self.lengths is None:
            steps = train_steps(self.count, size, self.seed, epoch)[position:]
        else:
            steps = self.lengths.train_steps(size, self.seed, epoch)[position:]
        batches = self.reader.batches(epoch, [step[self.rank :: self.world] for step in steps])
        return batches if self.lengths is None else self.lengths.cut(batches, steps)

    def time_waits(self, mark: Callable[[], Any]) -> None:
        """From now on note when each batch is asked for and when it arrives. mark: reads a clock, of the host
        or the device.
        """
        self._mark = mark

    def take_waits(self) -> list[tuple[Any, Any]]:
        """The noted times (asked for, arrived) since the last call."""
        waits, self._waits = self._waits, []
        return waits

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`, unless it is the epoch of the loaded checkpoint, which keeps its
        position.
        """
        if epoch != self.epoch:
            self.epoch, self.position, self._start = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Lightning writes it into a checkpoint."""
        names = ("epoch", "position", "seed", "batch_size", "world", "allowed")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the last batch handed out. Raises UserError if the rest of the epoch would come in
        another order.
        """
        self.epoch, position = state["epoch"], state["position"]
        names = {"seed": "seed", "batch_size": "data.batch_size", "world": "the number of devices"}
        names |= {"allowed": "data.lengths"}
        # older checkpoints have one length, or none
        state = state | {"allowed": _order_of(state.get("allowed"))}
        name = next((name for name in names if state[name] != getattr(self, name)), None)
        if name is not None and position % (self.count // state["world"] // state["batch_size"]):
            raise UserError(
                f"{names[name]} is {getattr(self, name)} but the checkpoint stopped in the middle of epoch "
                f"{self.epoch} with "
                f"{state[name]}: resume with {state[name]}, or from a checkpoint at an epoch's end"
            )
        self.position = self._start = position


def _order_of(allowed: Sequence[int] | str | None) -> list[int] | str:
    """The lengths that group the samples; "fixed": one length, or none, leaves their order as it is."""
    return "fixed" if allowed is None or isinstance(allowed, str) or len(allowed) == 1 else list(allowed)


class EvalLoader:
    """Every sample once, in order, spread over the ranks."""

    def __init__(
        self, reader, count: int, batch_size: int, rank: int = 0, world: int = 1,
        lengths: Lengths | None = None,
    ):  # fmt: skip
        self.reader, self.lengths = reader, lengths
        self.indices = eval_batches(count, batch_size, rank, world)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Batch]:
        batches = self.reader.batches(0, self.indices)
        yield from batches if self.lengths is None else self.lengths.cut(batches, self.indices)
