"""The difference of two settings' accuracy for the population of samples that the test set was drawn from.

A t test over seeds is for this one test set: another set of the same kind would give another difference. Let
x[j, i] be the difference that seed j makes on test sample i: 1 where the setting alone is right, −1 where the
control alone is, otherwise 0. Seeds and samples are crossed, x[j, i] = μ + seed[j] + sample[i] + rest[j, i],
so that with k seeds and n samples

    var(mean) = σ²_seed / k + σ²_sample / n + σ²_rest / (k·n)

(Searle, Casella & McCulloch 1992, Variance Components, chapter 4; Owen & Eckles 2012, arXiv:1106.2125; for
benchmarks Bouthillier et al. 2021, arXiv:2103.03098). The variance of the seeds' means, S²_seed / k,
estimates the first and the last term together, with k − 1 degrees of freedom. The samples' own term is
S²_sample / n − S²_rest / (k·n), from analysis of variance. The interval is

    mean ± √(t²(k − 1) · S²_seed / k + z² · σ²_sample / n)

It keeps its level for any ratio of the two, since the chi-squared distribution function with one degree of
freedom is concave (Banerjee 1960, Sankhyā 22, 357). If the two settings have different seeds, each adds a
term with its own t.

In a small test set it may happen by chance that no sample tells the settings apart. The samples' term
therefore counts two more samples, one that each setting alone has right (Bonett & Price 2012, J. Educ. Behav.
Stat. 37, 479), so that no interval has the width zero.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from mpx.compare.comparison import POPULATION, Method, Population, Row
from mpx.compare.run import Run
from mpx.compare.statistics import Finding
from mpx.runs.result import PREDICTIONS, Metric, Predictions

ACCURACY = "test/accuracy"  # the only metric that is a mean over samples which predictions.json keeps
TINY = 1e-15  # a variance below comes from rounding
STEPS = 60  # halvings of the range of a p value


@dataclass(frozen=True)
class Scatter:
    """A mean difference, and the variance that each source gives it."""

    mean: float
    # (variance, degrees of freedom); two if the settings have different seeds
    seeds: tuple[tuple[float, int], ...]
    samples: float = 0.0

    def interval(self, confidence: float) -> tuple[float, float]:
        half = self._half((1 - confidence) / 2)
        return self.mean - half, self.mean + half

    def p(self, sign: float, bound: float) -> float:
        """One-sided p for the hypothesis that sign · (mean − bound) is at most 0."""
        lead = sign * (self.mean - bound)
        low, high = 0.0, 0.5  # the interval at level p ends at the bound
        for _ in range(STEPS):
            level = (low + high) / 2
            low, high = (level, high) if self._half(level) > abs(lead) else (low, level)
        return high if lead > 0 else 1 - high

    def _half(self, level: float) -> float:
        """Half the width of the interval that is left on each side with probability `level`."""
        seeds = sum(
            float(special.stdtrit(freedom, level)) ** 2 * variance for variance, freedom in self.seeds
        )
        return math.sqrt(seeds + float(special.ndtri(level)) ** 2 * self.samples)


def scatter(setting: np.ndarray, control: np.ndarray, *, paired: bool, factor: float = 1.0) -> Scatter:
    """The scatter of setting − factor · control for the population. setting, control: [seeds, samples], at
    least two seeds; 1 is right.

    paired: row j of both has the same seed.
    """
    sides = [setting - factor * control] if paired else [setting.astype(np.float64), factor * control]
    n = setting.shape[1]
    by_sample = setting.mean(axis=0) - factor * control.mean(axis=0)
    seeds, rest = [], 0.0
    for side in sides:
        k = len(side)
        of_seeds = float(side.mean(axis=1).var(ddof=1))
        of_rest = max(0.0, (float(side.var(axis=0, ddof=1).mean()) - of_seeds) * n / (n - 1))
        seeds.append((of_seeds / k, k - 1))
        rest += of_rest / k
    mean = float(by_sample.mean())
    of_samples = (float(np.square(by_sample - mean).sum()) + 2) / (n + 1)
    return Scatter(mean, tuple(seeds), max(of_samples - rest, 2 / (n + 1)) / n)


@dataclass(frozen=True)
class Sampled:
    """A setting's difference to its control over seeds and test samples."""

    difference: Scatter
    against: Scatter  # of the quantity that the margin bounds
    bound: float
    sign: int  # of the metric


def sampled(row: Row, control: Row, metric: Metric, margin: float) -> Sampled | str:
    """The difference between the row and its control over seeds and samples, or the reason why it is
    unknown.
    """
    if metric.name != ACCURACY:
        return f"only a test accuracy is paired over samples, not {metric.words}"
    setting, base = _predictions(row.completed), _predictions(control.completed)
    if len(setting) < len(row.completed):
        return f"some of its runs have no {PREDICTIONS}"
    if len(base) < len(control.completed):
        return f"some of the control's runs have no {PREDICTIONS}"
    if len({(one.test_set, one.samples) for one in (*setting.values(), *base.values())}) > 1:
        return "the runs were tested on different samples"
    shared = sorted(setting.keys() & base.keys())
    paired = len(shared) >= 2
    s, c = (_right([one[seed] for seed in (shared if paired else sorted(one))]) for one in (setting, base))
    if min(len(s), len(c)) < 2:
        return "it takes at least 2 seeds of each"
    if s.shape[1] < 2:
        return "it takes at least 2 test samples"
    difference = scatter(s, c, paired=paired)
    if any(variance <= TINY for variance, _ in difference.seeds):
        return "the seeds tie, so how they scatter is unknown"
    if not metric.relative:
        return Sampled(difference, difference, -metric.sign * margin, metric.sign)
    return Sampled(
        difference, scatter(s, c, paired=paired, factor=1 - metric.sign * margin), 0.0, metric.sign
    )


def _predictions(runs: list[Run]) -> dict[int, Predictions]:
    return {run.seed: run.predictions for run in runs if run.predictions is not None}


def _right(predictions: list[Predictions]) -> np.ndarray:
    """1 where a run has a sample right, uint8 [runs, samples]."""
    return np.stack(
        [np.unpackbits(np.frombuffer(one.bits, np.uint8), count=one.samples) for one in predictions]
    )


def for_population(finding: Finding, by_sample: Sampled | str, margin_for: str) -> Finding:
    """The finding that decides: the one over seeds, or, if the margin is for the population, the one over
    samples, too.
    """
    if margin_for != POPULATION or finding.method == Method.TIED:
        return finding
    if isinstance(by_sample, str):
        return replace(finding, method=Method.UNSAMPLED, p_no_loss=None, p_loss=None, spreads=())
    no_loss, loss = (by_sample.against.p(sign, by_sample.bound) for sign in (by_sample.sign, -by_sample.sign))
    return replace(finding, method=Method.CROSSED, spreads=(), p_no_loss=no_loss, p_loss=loss)


def population(by_sample: Sampled | str, confidence: float) -> Population:
    if isinstance(by_sample, str):
        return Population(None, None, by_sample)
    return Population(*by_sample.difference.interval(confidence))
