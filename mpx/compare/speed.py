"""Which runs' speed counts, and the speed-up of a setting over its control.

Speed counts only for completed runs that had the device to themselves and emulated no format. It is compared only at the control's batch
size, on the control's kind of device and host, and with the same driver and versions. All other comparisons are refused, with a reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mpx.compare.comparison import Estimate, Run, Speedup
from mpx.compare.statistics import estimate, ratio_interval

SOFTWARE = ("cpu", "driver", "torch", "mpx")  # of a run's environment, where it is known


class Place(NamedTuple):
    """Where a speed was measured. Speeds of other places are not compared."""

    device: str | None
    batch_size: int | None
    host: tuple[str, ...]  # as `torch 2.11.0`


def place_of(run: Run) -> Place:
    return Place(run.device, run.batch_size, tuple(f"{key} {run.environment[key]}" for key in SOFTWARE if key in run.environment))


def counted(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.status == "completed" and _refused(run) is None]


def _refused(run: Run) -> str | None:
    if run.train_samples_per_s is None:
        return "no throughput was measured"
    if run.emulated:
        return "emulated: not the speed of this format"
    if run.exclusive is None:
        return "unknown whether it had the device for itself (a CPU is always shared)"
    return None if run.exclusive else run.speed_measured or "something else used the device"


def usual_place(runs: Iterable[Run]) -> Place | None:
    """The most common place of the runs whose speed counts."""
    return _most_common(counted(runs))


def _most_common(runs: Iterable[Run]) -> Place | None:
    places = Counter(map(place_of, runs))
    return min(places, key=lambda place: (-places[place], str(place))) if places else None


def own_place(place: Place | None, runs: Sequence[Run]) -> Place | None:
    """The place of these runs' speed: the control's `place` if any of them counts there, else their most common one."""
    return place if place and at(place, runs) else usual_place(runs)


def left_out(place: Place | None, runs: Iterable[Run]) -> dict[str, int]:
    """Reason -> number of completed runs whose speed does not count at `place`."""
    return Counter(why for run in runs if run.status == "completed" and (why := _refused(run) or _elsewhere(run, place)))


def _elsewhere(run: Run, place: Place | None) -> str | None:
    mine = place_of(run)
    if place is None or mine == place:
        return None
    if mine.device != place.device:
        return f"ran on {mine.device or 'an unknown device'}"
    return f"batch size {mine.batch_size}" if mine.batch_size != place.batch_size else _other_host(mine, place)


def _other_host(mine: Place, place: Place) -> str:
    """`measured with torch 2.11.0`, of what differs."""
    return f"measured with {', '.join(word for word in mine.host if word not in place.host) or 'unknown versions'}"


def at(place: Place | None, runs: Iterable[Run]) -> list[Run]:
    """The runs whose speed counts and that ran at `place`."""
    return [run for run in counted(runs) if place_of(run) == place]


def shared(runs: Iterable[Run]) -> Estimate | None:
    """Throughput on a device that other programs may have used. It is shown with a mark and never compared."""
    runs = [run for run in runs if run.status == "completed" and run.train_samples_per_s is not None and not run.emulated]
    place = _most_common(runs)
    return throughput([run for run in runs if place_of(run) == place])


def throughput(runs: Sequence[Run]) -> Estimate | None:
    """Over measurements: one that was made alone for all runs of the setting counts once."""
    own = [run.train_samples_per_s for run in runs if not run.measured_alone]
    return estimate([*own, *sorted({run.train_samples_per_s for run in runs if run.measured_alone})])


def ratio(a: Estimate | None, b: Estimate | None, confidence: float) -> Speedup | None:
    """The ratio of the means, a ÷ b."""
    if a is None or b is None:
        return None
    return Speedup(a.mean / b.mean, *(ratio_interval(a, b, confidence) or (None, None)))


def note(runs: Sequence[Run], place: Place | None, control: str, is_control: bool) -> str | None:
    """Why these runs' speed is not compared with the control's, which ran at `place` (None: its speed does not count)."""
    completed = [run for run in runs if run.status == "completed"]
    if not completed:
        return "no run completed"
    if not counted(completed):
        return _words(completed, _refused)
    if is_control:
        return None
    if place is None:
        return f"the speed of {control} does not count"
    if at(place, completed):
        return None
    there = [place_of(run) for run in counted(completed)]
    if all(found.device != place.device for found in there):
        return (
            f"ran on {_words(completed, lambda run: run.device or 'an unknown device')}, {control} on {place.device or 'an unknown device'}"
        )
    if all(found.batch_size != place.batch_size for found in there):
        return f"batch size {_words(completed, lambda run: str(run.batch_size))}, {control} {place.batch_size}"
    others = dict.fromkeys(_other_host(found, place) for found in there)
    return f"{'; '.join(others)}, {control} with {', '.join(place.host) or 'unknown versions'}"


def _words(runs: Iterable[Run], word: Callable[[Run], str | None]) -> str:
    """The distinct words for the runs."""
    return "; ".join(dict.fromkeys(found for run in runs if (found := word(run))))
