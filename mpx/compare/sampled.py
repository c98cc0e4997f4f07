"""Use the predictions on single test samples for decisions: an interval for the population."""

from dataclasses import dataclass, replace

import numpy as np

from mpx.compare.comparison import POPULATION, Method, Population, Row
from mpx.compare.metric import Metric
from mpx.compare.population import TINY, Scatter, scatter
from mpx.compare.predictions import ACCURACY
from mpx.compare.statistics import Finding
from mpx.record.files import PREDICTIONS, Predictions

OTHER_SAMPLES = "the runs were tested on different samples"


@dataclass(frozen=True)
class Sampled:
    """A setting's difference to its control over seeds and test samples."""

    difference: Scatter
    against: Scatter  # of the quantity that the margin bounds
    bound: float
    sign: int  # of the metric

    def for_population(self, finding: Finding) -> Finding:
        """The finding with the test for the population in place of the one over seeds."""
        return replace(finding, method=Method.CROSSED, spreads=(), **self._test(self.against))

    def _test(self, against: Scatter) -> dict[str, float]:
        return {"p_no_loss": against.p(self.sign, self.bound), "p_loss": against.p(-self.sign, self.bound)}


def sampled(row: Row, control: Row, metric: Metric, margin: float) -> Sampled | str:
    """The difference between the row and its control over seeds and samples, or the reason why it is unknown. margin: as in Comparison."""
    if metric.name != ACCURACY:
        return f"only a test accuracy is paired over samples, not {metric.words}"
    sides = [{run.seed: run.predictions for run in one.runs if run.status == "completed"} for one in (row, control)]
    for whose, found in zip(("its", "the control's"), sides, strict=True):
        if None in found.values():
            return f"some of {whose} runs have no {PREDICTIONS}"
    if len({(one.test_set, one.samples) for found in sides for one in found.values()}) > 1:
        return OTHER_SAMPLES
    shared = sorted(sides[0].keys() & sides[1].keys())
    paired = len(shared) >= 2
    seeds = (shared, shared) if paired else tuple(map(sorted, sides))
    if min(map(len, seeds)) < 2:
        return "it takes at least 2 seeds of each"
    if any(one.samples < 2 for one in sides[0].values()):
        return "it takes at least 2 test samples"
    s, c = (np.stack([_right(found[seed]) for seed in those]) for found, those in zip(sides, seeds, strict=True))  # [seeds, samples]
    difference = scatter(s, c, paired=paired)
    if not all(variance > TINY for variance, _ in difference.seeds):
        return "the seeds tie, so how they scatter is unknown"
    if not metric.relative:
        return Sampled(difference, difference, -metric.sign * margin, metric.sign)
    return Sampled(difference, scatter(s, c, paired=paired, factor=1 - metric.sign * margin), 0.0, metric.sign)


def _right(found: Predictions) -> np.ndarray:
    """1 where the run has a sample right, uint8 [samples]."""
    return np.unpackbits(np.frombuffer(found.bits, np.uint8), count=found.samples)


def settled(finding: Finding, found: Sampled | str, margin_for: str) -> Finding:
    """The finding that decides: the one over seeds, unless the margin is for the population."""
    if margin_for != POPULATION or finding.method == Method.TIED:
        return finding
    if isinstance(found, Sampled):
        return found.for_population(finding)
    return replace(finding, method=Method.UNSAMPLED, p_no_loss=None, p_loss=None, spreads=())


def population(found: Sampled | str, confidence: float) -> Population:
    return Population(None, None, found) if isinstance(found, str) else Population(*found.difference.interval(confidence))


def notes_on(row: Row, *, wanted: bool) -> list[str]:
    """Notes on an interval that is missing or has no stated confidence. A note on different test samples is always given.

    wanted: also give notes on missing intervals for the population, since the margin or other settings ask for them.
    """
    decision = row.decision
    if decision is None or decision.population is None:
        return []
    reason = decision.population.reason
    return [f"no interval for the population, since {reason}"] if reason and (wanted or reason == OTHER_SAMPLES) else []
