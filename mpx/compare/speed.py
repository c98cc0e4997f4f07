"""Which runs' speed counts, and the speed-up of a setting over its control.

Speed counts only for completed runs that had the device to themselves and emulated no format. It is compared
only at the control's batch size, on the control's kind of device, on its host, and with the same driver,
PyTorch and source files of mpx. All other comparisons are refused, with a reason.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mpx.compare.comparison import Estimate, Group, Speedup, estimate
from mpx.compare.run import Run
from mpx.compare.statistics import ratio_interval
from mpx.runs.result import EMULATED, HOST, mpx_of

SHORTEST = 1e-3  # seconds; a shorter training was not timed


class Place(NamedTuple):
    """Where a speed was measured. Only speeds of the same place are compared."""

    device: str | None
    batch_size: int | None
    kind: tuple[str, ...]  # of its host, as `torch 2.11.0`
    host: str | None  # which changes when the host restarts; None: older records do not tell
    mpx: str | None  # as `0.1.0+1a2b3c4d`, whose end tells its source files

    def unlike(self, other: "Place") -> tuple[str, str]:
        """How it differs from another place: what it is here, and what it is there."""
        if self.device != other.device:
            return f"ran on {self.device or 'an unknown device'}", f"on {other.device or 'an unknown device'}"
        if self.batch_size != other.batch_size:
            return _batches(self.batch_size), f"with {_batches(other.batch_size)}"
        if self.kind != other.kind:
            only_here = ", ".join(word for word in self.kind if word not in other.kind)
            return (
                f"measured with {only_here or 'unknown versions'}",
                f"with {', '.join(other.kind) or 'unknown versions'}",
            )
        if self.host == other.host:
            return f"measured with {_version(self.mpx)}", f"with {_version(other.mpx)}"
        if self.host and other.host:
            return (
                "ran on another host, or before or after a restart of the same one",
                f"on host {other.host}",
            )
        here, there = (
            f"on host {host}" if host else "on an unknown host" for host in (self.host, other.host)
        )
        return f"ran {here}", there


def _batches(size: int | None) -> str:
    return f"batch size {size}" if size else "batches of no usual size"


def _version(mpx: str | None) -> str:
    return f"mpx {mpx}" if mpx else "an unknown version of mpx"


def place_of(run: Run) -> Place:
    kind = tuple(f"{key} {run.environment[key]}" for key in HOST if key in run.environment)
    host = run.environment.get("host")
    return Place(
        run.device, run.batch_size, kind, None if host is None else str(host), mpx_of(run.environment)
    )


def counted(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.completed and refused(run) is None]


def refused(run: Run) -> str | None:
    """Why the speed of a run counts nowhere."""
    if not run.train_samples_per_s:
        return "no throughput was measured"
    if run.emulated:
        return EMULATED
    if run.exclusive is None:
        return "unknown whether something else used the device"
    used = "the device" if run.cpu_used_by_others is None else "the CPU"
    return None if run.exclusive else f"other programs used {used}"


def usual_place(runs: Iterable[Run], others: Iterable[Run] = ()) -> Place | None:
    """The most common place of the runs whose speed counts; of several such, the one at which most of
    `others` count.
    """
    return _most_common(map(place_of, counted(runs)), map(place_of, counted(others)))


def place_in(group: Group) -> Place | None:
    """Where the speeds of this group are compared; None without a control whose speed counts."""
    control, *others = group.rows
    return usual_place(control.runs, [run for row in others for run in row.runs]) if group.control else None


def _most_common(places: Iterable[Place], others: Iterable[Place] = ()) -> Place | None:
    count, of_others = Counter(places), Counter(others)
    return min(count, key=lambda place: (-count[place], -of_others[place], str(place)), default=None)


def place_for(runs: Sequence[Run], place: Place | None) -> Place | None:
    """The place of these runs' speed: the control's `place` if the speed of any of them counts there, else
    their most common one.
    """
    return place if at(place, runs) else usual_place(runs)


def on_one_device(place: Place | None, runs: Sequence[Run]) -> list[Run]:
    """The runs on the device of `place`, or else on the most common one: a GPU's memory and a host's RAM have
    no common mean.
    """
    place = place or _most_common(map(place_of, runs))
    return [run for run in runs if place and run.device == place.device]


def at(place: Place | None, runs: Iterable[Run]) -> list[Run]:
    """The runs whose speed counts and that ran at `place`."""
    return [run for run in counted(runs) if place_of(run) == place]


def left_out(place: Place, runs: Iterable[Run]) -> dict[str, int]:
    """Reason -> number of completed runs whose speed does not count at `place`."""
    out = [run for run in runs if run.completed and (refused(run) or place_of(run) != place)]
    return Counter(refused(run) or place_of(run).unlike(place)[0] for run in out)


def shared(runs: Iterable[Run]) -> list[Run]:
    """The runs on devices of one kind that other programs may have used. Their throughput is shown with a
    mark and never compared.
    """
    runs = [run for run in runs if run.completed and run.train_samples_per_s and not run.emulated]
    places = [place_of(run)._replace(host=None) for run in runs]
    usual = _most_common(places)
    return [run for run, place in zip(runs, places, strict=True) if place == usual]


def throughput(runs: Iterable[Run]) -> Estimate | None:
    return estimate([run.train_samples_per_s for run in runs if run.train_samples_per_s is not None])


def timed(runs: Iterable[Run]) -> Estimate | None:
    """Time to train, over runs whose speed counts. Resumed runs are left out: their parts may have run on
    different devices.
    """
    times = (run.time_to_train_s for run in runs if not run.resumed)
    return estimate([time for time in times if time is not None and time >= SHORTEST])


def ratio(a: Estimate | None, b: Estimate | None, confidence: float) -> Speedup | None:
    """The ratio of the means, a ÷ b."""
    if a is None or b is None:
        return None
    return Speedup(a.mean / b.mean, *(ratio_interval(a, b, confidence) or (None, None)))


def note(runs: Sequence[Run], place: Place | None, control: str | None) -> str | None:
    """Why these runs' speed is not compared with that of `control`, which ran at `place` (None: its speed
    does not count).

    control: None for runs of the control itself, or without one.
    """
    completed = [run for run in runs if run.completed]
    if not completed:
        return "no run completed"
    places = [place_of(run) for run in counted(completed)]
    if not places:
        return "; ".join(dict.fromkeys(reason for run in completed if (reason := refused(run))))
    if control is None or place in places:
        return None
    if place is None:
        return f"the speed of {control} does not count"
    here, there = (dict.fromkeys(words) for words in zip(*(one.unlike(place) for one in places), strict=True))
    return f"{'; '.join(here)}, {control} {' and '.join(there)}"
