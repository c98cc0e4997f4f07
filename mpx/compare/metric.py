"""Choose the metric by which runs are compared: its name, whether it should rise or fall, and the meaning of a margin."""

from collections.abc import Iterable
from dataclasses import replace

from mpx.compare.comparison import GOALS, METRICS, Metric, Run, metric_of, to_print
from mpx.compare.control import AUTO
from mpx.errors import UserError, nearest
from mpx.runs.record import metric_name

OF_MPX = {"accuracy": 1, "loss": -1, "perplexity": -1}  # what mpx's own models log in validation and test


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
