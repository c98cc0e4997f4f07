"""Which runs' speed counts, and how many times as fast a setting is as its control.

Compared are completed runs that had the device for themselves and computed in the formats themselves, at the control's batch size and on
the control's device. Anything else is refused, with the reason in words.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from mpx.compare.comparison import Estimate, Run, Speedup
from mpx.compare.statistics import estimate, ratio_interval


def counted(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.status == "completed" and _refused(run) is None]


def _refused(run: Run) -> str | None:
    if run.train_samples_per_s is None:
        return "no throughput was measured"
    if run.emulated:
        return "emulated: not the speed of this format"
    if run.exclusive is None:
        return "unknown whether it had the device for itself (a CPU is always shared)"
    return None if run.exclusive else "something else used the device"


def usual_place(runs: Sequence[Run]) -> tuple[str | None, int | None] | None:
    """Device and batch size of most runs whose speed counts."""
    return _most(counted(runs))


def _most(runs: Iterable[Run]) -> tuple[str | None, int | None] | None:
    places = Counter((run.device, run.batch_size) for run in runs)
    return min(places, key=lambda place: (-places[place], str(place))) if places else None


def own_place(place: tuple | None, runs: Sequence[Run]) -> tuple | None:
    """Where these runs' speed is taken: at the control's `place`, if any counts there, else where most of them ran."""
    return place if place and at(place, runs) else usual_place(runs)


def left_out(place: tuple | None, runs: Iterable[Run]) -> dict[str, int]:
    """Reason -> number of the completed runs whose speed does not count at that place."""
    return Counter(why for run in runs if run.status == "completed" and (why := _refused(run) or _elsewhere(run, place)))


def _elsewhere(run: Run, place: tuple | None) -> str | None:
    if place is None or (run.device, run.batch_size) == place:
        return None
    return f"ran on {run.device or 'an unknown device'}" if run.device != place[0] else f"batch size {run.batch_size}"


def at(place: tuple | None, runs: Iterable[Run]) -> list[Run]:
    """The runs whose speed counts and that ran on that device with that batch size."""
    return [run for run in counted(runs) if (run.device, run.batch_size) == place]


def shared(runs: Iterable[Run]) -> Estimate | None:
    """Throughput as measured where others may have used the device: to be shown with a mark, and compared with nothing."""
    runs = [run for run in runs if run.status == "completed" and run.train_samples_per_s is not None and not run.emulated]
    place = _most(runs)
    return throughput(run for run in runs if (run.device, run.batch_size) == place)


def throughput(runs: Iterable[Run]) -> Estimate | None:
    return estimate([run.train_samples_per_s for run in runs])


def ratio(a: Estimate | None, b: Estimate | None, confidence: float) -> Speedup | None:
    """a ÷ b, of means."""
    if a is None or b is None:
        return None
    return Speedup(a.mean / b.mean, *(ratio_interval(a, b, confidence) or (None, None)))


def note(runs: Sequence[Run], place: tuple | None, control: str, is_control: bool) -> str | None:
    """Why these runs' speed is not compared with that of the control, which ran at `place` (None: its speed does not count)."""
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
    device, batch_size = place
    if all(run.device != device for run in counted(completed)):
        return f"ran on {_words(completed, lambda run: run.device or 'an unknown device')}, {control} on {device or 'an unknown device'}"
    return f"batch size {_words(completed, lambda run: str(run.batch_size))}, {control} {batch_size}"


def _words(runs: Iterable[Run], word: Callable[[Run], str | None]) -> str:
    """The different words that runs give, each once."""
    return "; ".join(dict.fromkeys(found for run in runs if (found := word(run))))
