"""The metric by which runs are compared: its name, whether it should rise or fall, and the meaning of a margin."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mpx.compare.control import AUTO
from mpx.compare.run import Run
from mpx.errors import UserError, nearest
from mpx.record.result import metric_name


@dataclass(frozen=True)
class Metric:
    """A metric by which settings are compared."""

    name: str  # test/accuracy
    words: str  # test accuracy
    sign: int  # 1: higher is better; -1: lower is better
    relative: bool  # True: the margin is a share of the control's mean; False: it has the metric's unit
    spec: str = ".4f"  # how its values are printed

    def allowed(self, margin: float, mean: float) -> float:
        """The largest loss that does not matter, in the metric's unit. mean: the control's."""
        return margin * abs(mean) if self.relative else margin


METRICS = {
    "test/accuracy": Metric("test/accuracy", "test accuracy", 1, relative=False),
    "test/perplexity": Metric("test/perplexity", "test perplexity", -1, relative=True, spec=".2f"),
}
GOALS = {"max": 1, "min": -1}
OF_MPX = {"accuracy": 1, "loss": -1, "perplexity": -1}  # what mpx's own models log in validation and test
SMALL = 10  # a perplexity below, as of characters, has differences that two decimals would round to zero


def metric_of(name: str, goal: str) -> Metric:
    """The metric that a record declares as `"metric": {"name": …, "goal": "max" | "min"}`.

    A metric that should rise is taken for a share, such as an accuracy, and its margin has its unit. A metric that should fall may have any
    scale, such as a perplexity, and its margin is a share of the control's value.
    """
    falls = goal == "min"
    return METRICS.get(name) or Metric(name, name.replace("/", " "), GOALS[goal], relative=falls, spec="#.4g" if falls else ".4f")


def to_print(metric: Metric, values: Iterable[Any]) -> Metric:
    """The metric with the decimals that such values need. values: of runs; any that is no number does not count."""
    small = metric.spec == ".2f" and any(isinstance(value, (int, float)) and abs(value) < SMALL for value in values)
    return replace(metric, spec=".4f") if small else metric


def judged_by(metrics: Mapping[str, Any], name: str | None = None, goal: str | None = None) -> Metric:
    """The metric by which a run with `metrics` is judged: the one of this name and goal, if its record declares one; else the perplexity or
    the accuracy. A language model has both."""
    if name is not None and goal is not None:
        return to_print(metric_of(name, goal), [metrics.get(name)])
    found = METRICS["test/perplexity" if "test/perplexity" in metrics else "test/accuracy"]
    return to_print(found, [metrics.get(found.name)])


def judged_by_record(record: Mapping[str, Any]) -> Metric:
    """`judged_by` for a run's record, or the parts of it that a sweep keeps."""
    return judged_by(record["metrics"], **(record.get("metric") or {}))


def choose_metric(runs: Iterable[Run], *, wanted: str, goal: str, margin_is: str) -> Metric:
    """The wanted metric, or else the project's own, or else one that was measured.

    Language models are compared by perplexity, which only they have, although they also have an accuracy: the share of correct tokens.
    goal: of the wanted metric, max, min, or auto: as the runs say. margin_is: absolute, relative, or auto: relative where it should fall.
    Raises UserError for a metric if nothing says whether it should rise or fall.
    """
    runs = list(runs)
    there = {name for run in runs for name in run.metrics}
    asked = wanted if wanted == AUTO else metric_name(wanted)
    own = dict.fromkeys(run.metric for run in runs if run.metric is not None)
    found = next((name for name in (asked, *own, "test/perplexity", "test/accuracy") if name in there), asked)
    found = next(iter(own), "test/accuracy") if found == AUTO else found
    sign = _sign(found, runs, goal if asked in (AUTO, found) else AUTO)
    metric = replace(metric_of(found, "min" if sign < 0 else "max"), sign=sign)
    metric = to_print(metric, [run.metrics[found] for run in runs if found in run.metrics])
    return metric if margin_is == AUTO else replace(metric, relative=margin_is == "relative")


def check_metric(runs: Iterable[Run], wanted: str) -> None:
    """Raise UserError for a metric that no run has. METRICS are always allowed, since a study without one of them has the other."""
    there = {name for run in runs for name in run.metrics}
    if wanted != AUTO and wanted not in METRICS and metric_name(wanted) not in there:
        raise UserError(f"metric={wanted}: no run has it.{nearest(wanted, there)} There are: {', '.join(sorted(there)) or 'none'}.")


def _sign(name: str, runs: list[Run], goal: str) -> int:
    known = METRICS[name].sign if name in METRICS else OF_MPX.get(name.rpartition("/")[2])
    said = {GOALS[run.metric_goal] for run in runs if run.metric == name and run.metric_goal is not None}
    if goal != AUTO:
        if known == -GOALS[goal] and GOALS[goal] not in said:
            raise UserError(f"metric_goal={goal}, but {name} should {'rise' if known > 0 else 'fall'}. Leave metric_goal out.")
        return GOALS[goal]
    if len(said) == 1:
        return said.pop()
    if not said and known is not None:
        return known
    why = "some runs say that it should rise, others that it should fall" if said else "no run says whether it should rise or fall"
    raise UserError(f"metric={name}: {why}. Add metric_goal=max or metric_goal=min.")
