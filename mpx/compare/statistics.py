"""Is one setting's metric no worse than another's by more than a margin? From few seeds, with stated confidence.

Non-inferiority: the hypothesis that the loss is the margin or more is tested one-sided, at level 1 − confidence. With the seeds' values
s of the setting and c of the control, and c′ the control moved down by the margin (c − margin for accuracy, c·(1 + margin) for
perplexity, which is better when lower), it asks whether s is better than c′. A relative margin is so part of the test, and not a constant
taken from the same data. The opposite test asks whether the loss exceeds the margin.

Seeds that both completed are paired (the same initial weights and data order), where there are at least two; else Welch's test is
used. Both assume values that scatter normally. The paired test then holds its level exactly. Welch's does within half a percent from four
values on each side; with fewer, where it reaches 7 % for 5 %, it takes the degrees of freedom of the smaller side, which is never too bold
(Hsu 1938). With fewer than four on a side, too, all seeds of each side may agree by chance where the metric is coarse: taking that
for certainty called one loss of the margin in ten no loss (two seeds, 360 test images, a scatter of half an image). So it decides nothing.
Nor do two or three pairs of equal values, unless the runs are the same in all else too, as FP16 with two loss scales that never overflow.
More seeds that all agree still know the difference no better than to a step of the metric, one test image, so within a step of the margin
they decide nothing either: with the control at 342 of 360 images and a margin of 3.1, six in ten losses of just that were called none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import special  # and not scipy.stats, which takes longer to import than to compare a thousand runs

from mpx.compare.comparison import Estimate, Metric

POWER = 0.8  # chance of a decision at which seeds are called enough
MOST_SEEDS = 1000
FAR = 30.0  # mean of a noncentral t, from which on it comes near the end of double precision
LEAST_PARTS, MOST_PARTS = 100, 200_000  # images of a test set
FEW = 4  # values on a side from which Welch's degrees of freedom are taken, and seeds that all agree are believed


@dataclass(frozen=True)
class Finding:
    """What the values of a setting and its control say, before the correction for several settings."""

    method: str  # as in Decision
    difference: float
    low: float | None
    high: float | None
    p_no_loss: float | None  # of the hypothesis that the loss is the margin or more
    p_loss: float | None  # of the hypothesis that the loss is at most the margin
    n: int  # pairs, or values on the smaller side
    effect: float  # distance from the margin, positive where there is less loss; a gain counts as no difference
    spreads: tuple[float, ...]  # standard deviation of the paired differences, or of both sides; () where unknown


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and sample standard deviation; None of no values."""
    if not len(values):
        return None
    return Estimate(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None, len(values))


def examine(
    setting: Mapping[int, float], control: Mapping[int, float], metric: Metric, margin: float, confidence: float, *, alike: bool = False
) -> Finding:
    """setting, control: seed -> value, at least one each. margin: as in Comparison. alike: a seed's two runs agree in all else too."""
    shared = sorted(setting.keys() & control.keys())
    paired = len(shared) >= 2
    s = np.array([setting[seed] for seed in shared] if paired else list(setting.values()), dtype=np.float64)  # [seeds]
    c = np.array([control[seed] for seed in shared] if paired else list(control.values()), dtype=np.float64)
    moved = c * (1 - metric.sign * margin) if metric.relative else c - metric.sign * margin
    n = min(len(s), len(c))
    better = metric.sign * (s.mean() - moved.mean())
    effect = float(min(better, metric.sign * (c.mean() - moved.mean())))
    known = {"difference": float(s.mean() - c.mean()), "n": n, "effect": effect}
    if n < 2:
        return Finding("none", low=None, high=None, p_no_loss=None, p_loss=None, spreads=(), **known)
    still = _constant(s) and _constant(c)
    same = np.allclose(s, c, rtol=1e-12, atol=0) if paired else still and np.isclose(s.mean(), c.mean(), rtol=1e-12, atol=0)
    believed = n >= FEW or alike
    if still or (same and believed):
        step = 0.0 if alike else _step(np.concatenate([s, c]))
        if not believed or abs(better) < step * (1 - 1e-9):
            return Finding("equal seeds", low=None, high=None, p_no_loss=None, p_loss=None, spreads=(), **known)
        return _exact(known, float(better), float(abs(moved).max()))
    # Differences that are all equal though the values are not: a coincidence of a coarse metric (one image in 360), which says nothing
    # about their spread. Welch's test then takes it from the values.
    pairwise = paired and not _constant(s - c) and not _constant(s - moved)
    low, high = _test(s, c, pairwise).interval(confidence)
    against = _test(s, moved, pairwise)
    p_no_loss, p_loss = against.p(metric.sign), against.p(-metric.sign)
    spreads = (float(np.std(s - moved, ddof=1)),) if pairwise else (float(np.std(s, ddof=1)), float(np.std(moved, ddof=1)))
    method = "paired t" if pairwise else "Welch"
    return Finding(method, low=low, high=high, p_no_loss=p_no_loss, p_loss=p_loss, spreads=spreads, **known)


def _step(values: np.ndarray) -> float:
    """The step of a metric that counts: 1/360 for shares of 360 test images, or more, as the values' common denominator tells; else 0."""
    parts = 1
    for value in np.unique(values).tolist():
        share = Fraction(value).limit_denominator(MOST_PARTS)
        if abs(share - Fraction(value)) > 1e-12:
            return 0.0
        parts = math.lcm(parts, share.denominator)
    return 1 / max(parts, LEAST_PARTS)


def _constant(values: np.ndarray) -> bool:
    """Equal up to the rounding of float64."""
    return bool(np.ptp(values) <= 1e-12 * max(1e-300, float(np.abs(values).max())))


def _exact(known: dict, better: float, size: float) -> Finding:
    """No variance at all: the difference is known, and compared with the margin. A loss of just the margin counts as the margin."""
    passed = better > 1e-12 * size
    at = known["difference"]
    return Finding("exact", low=at, high=at, p_no_loss=float(not passed), p_loss=float(passed), spreads=(0.0,), **known)


@dataclass(frozen=True)
class _Test:
    """Of a mean difference: Student's t with its standard error and degrees of freedom."""

    difference: float
    error: float
    freedom: float

    def p(self, sign: float) -> float:
        """One-sided, of the hypothesis that sign · difference is not above 0."""
        return float(special.stdtr(self.freedom, -sign * self.difference / self.error))

    def interval(self, confidence: float) -> tuple[float, float]:
        half = _critical((1 - confidence) / 2, self.freedom) * self.error
        return float(self.difference - half), float(self.difference + half)


def _test(a: np.ndarray, b: np.ndarray, pairwise: bool) -> _Test:
    if pairwise:
        return _Test(float(np.mean(a - b)), float(np.std(a - b, ddof=1) / np.sqrt(len(a))), len(a) - 1)
    var_a, var_b = np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)
    fewer = min(len(a), len(b))
    freedom = fewer - 1 if fewer < FEW else (var_a + var_b) ** 2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1))
    return _Test(float(np.mean(a) - np.mean(b)), float(np.sqrt(var_a + var_b)), float(freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: with all of them below `level`, the chance of any wrong rejection is at most `level`."""
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def more_seeds(finding: Finding, level: float) -> int | None:
    """About how many more seeds per setting give an 80 % chance of a decision at `level`.

    Taken as true are the observed spread and the observed difference, but no gain: a setting that looks better than its control counts as
    equal. None where no spread is known or over 1,000 seeds would be needed (a difference just at the margin).
    """
    effect = abs(finding.effect)
    if not finding.spreads or effect == 0:
        return None
    n = np.arange(2, MOST_SEEDS + 1)
    enough = n[_power(n, effect, finding.spreads, level) >= POWER]
    return max(1, int(enough[0]) - finding.n) if len(enough) else None


def _power(n: np.ndarray, effect: float, spreads: tuple[float, ...], level: float) -> np.ndarray:
    """Of the one-sided t test with n pairs, or n values on each side, for each n: noncentral t."""
    variances = np.square(spreads)
    freedom = (n - 1) * variances.sum() ** 2 / np.square(variances).sum()  # n − 1 when paired
    shift = effect / np.sqrt(variances.sum() / n)
    critical = _critical(level, freedom)
    far = shift > FAR  # then the numerator, normal with this mean, scatters so little that the denominator's chi squared decides alone
    alone = special.chdtr(freedom, freedom * (shift / critical) ** 2)
    return np.where(far, alone, 1 - special.nctdtr(freedom, np.where(far, 0.0, shift), critical))


def _critical(level: float, freedom: np.ndarray | float) -> np.ndarray | float:
    """What Student's t exceeds with the chance `level`."""
    return -special.stdtrit(freedom, level)


def ratio_interval(a: Estimate, b: Estimate, confidence: float) -> tuple[float, float] | None:
    """Fieller's interval for the ratio of two independent means, with Welch's degrees of freedom; None where it has no bounds.

    a and b are positive, and so is their ratio: an interval that reaches below 0 ends there.
    """
    if a.n < 2 or b.n < 2:
        return None
    ratio, var_a, var_b = a.mean / b.mean, a.std**2 / a.n, b.std**2 / b.n
    scaled = ratio**2 * var_b
    if var_a + scaled == 0:
        return ratio, ratio
    freedom = (var_a + scaled) ** 2 / (var_a**2 / (a.n - 1) + scaled**2 / (b.n - 1))
    t = _critical((1 - confidence) / 2, freedom)
    g = t**2 * var_b / b.mean**2
    if g >= 1:  # the control's own mean cannot be told from zero
        return None
    half = t / b.mean * np.sqrt(var_a * (1 - g) + scaled)
    return max(0.0, float((ratio - half) / (1 - g))), float((ratio + half) / (1 - g))
