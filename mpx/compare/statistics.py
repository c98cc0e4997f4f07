"""Is one setting's metric no worse than another's by more than a margin? From few seeds, with stated confidence.

Non-inferiority: the hypothesis that the loss is the margin or more is tested one-sided, at level 1 − confidence. Let s be the setting's
values, c the control's, and c′ the control moved down by the margin (c − margin for accuracy; c·(1 + margin) for perplexity, which is
better when lower). The test asks whether s is better than c′. So a relative margin is part of the test, and not a constant taken from the
same data. The opposite test asks whether the loss exceeds the margin.

Seeds that both completed are paired (the same initial weights and data order) where there are at least two; else Welch's test is used.
Both assume that values scatter normally. The paired test then holds its level exactly. Welch's does within half a percent from four values
on each side. With fewer it reaches 7 % for 5 %, so it then takes the degrees of freedom of the smaller side, which is never too bold
(Hsu 1938).

Values without variance:
- With fewer than four on a side, all seeds of each side may agree by chance where the metric is coarse (two seeds, 360 test images, a
  scatter of half an image): nothing is decided. Two or three pairs of equal values decide nothing either, unless the runs also agree in
  every other metric, as those of FP16 with two loss scales that never overflow.
- Four or more seeds that all agree know the difference to a step of the metric, one test image. The interval is that step to both sides,
  and within a step of the margin nothing is decided.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy import special  # and not scipy.stats, which takes longer to import than to compare a thousand runs

from mpx.compare.comparison import Estimate, Method, Metric

POWER = 0.8  # chance of a decision at which seeds are called enough
MOST_SEEDS = 1000  # that are advised
FAR = 30.0  # mean of a noncentral t from which on it comes near the end of double precision
LEAST_IMAGES, MOST_IMAGES = 100, 200_000  # of a test set
ENOUGH = 4  # values on a side for Welch's degrees of freedom, and seeds that all agree for that to count


@dataclass(frozen=True)
class Finding:
    """What the values of a setting and its control say, before the correction for several settings."""

    method: Method
    difference: float
    n: int  # pairs, or values on the smaller side
    effect: float  # distance from the margin, positive where there is less loss; a gain counts as no difference
    low: float | None = None
    high: float | None = None
    p_no_loss: float | None = None  # of the hypothesis that the loss is the margin or more
    p_loss: float | None = None  # of the hypothesis that the loss is at most the margin
    spreads: tuple[float, ...] = ()  # standard deviation of the paired differences, or of both sides; () where unknown


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
    better = float(metric.sign * (s.mean() - moved.mean()))
    n, effect = min(len(s), len(c)), min(better, float(metric.sign * (c.mean() - moved.mean())))
    found = Finding(Method.NONE, float(s.mean() - c.mean()), n, effect)
    if n < 2:
        return found
    enough = n >= ENOUGH or alike
    if (_constant(s) and _constant(c)) or (enough and paired and np.allclose(s, c, rtol=1e-12, atol=0)):
        step = 0.0 if alike else _step(np.concatenate([s, c]))
        if not enough or abs(better) < step * (1 - 1e-9):
            return replace(found, method=Method.EQUAL)
        return _exact(found, step, better, float(abs(moved).max()))
    # Differences that are all equal though the values are not: a coincidence of a coarse metric (one image in 360), which says nothing
    # about their spread. Welch's test then takes it from the values.
    pairwise = paired and not _constant(s - c) and not _constant(s - moved)
    low, high = _test(s, c, pairwise).interval(confidence)
    against = _test(s, moved, pairwise)
    spreads = (float(np.std(s - moved, ddof=1)),) if pairwise else (float(np.std(s, ddof=1)), float(np.std(moved, ddof=1)))
    return replace(
        found, method=Method.PAIRED if pairwise else Method.WELCH, low=low, high=high,
        p_no_loss=against.p(metric.sign), p_loss=against.p(-metric.sign), spreads=spreads,
    )  # fmt: skip


def _step(values: np.ndarray) -> float:
    """The step of a metric that counts images: 1/360 for shares of 360 test images, as the values' common denominator tells; else 0."""
    images = 1
    for value in np.unique(values).tolist():
        share = Fraction(value).limit_denominator(MOST_IMAGES)
        if abs(share - Fraction(value)) > 1e-12:
            return 0.0
        images = math.lcm(images, share.denominator)
    return 1 / max(images, LEAST_IMAGES)


def _constant(values: np.ndarray) -> bool:
    """Equal up to the rounding of float64."""
    return bool(np.ptp(values) <= 1e-12 * max(1e-300, float(np.abs(values).max())))


def _exact(found: Finding, step: float, better: float, size: float) -> Finding:
    """The difference is known to a `step`; without one there is no interval. A loss of just the margin counts as the margin."""
    passed, at = better > 1e-12 * size, found.difference
    low, high = (at - step, at + step) if step else (None, None)
    return replace(found, method=Method.EXACT, low=low, high=high, p_no_loss=float(not passed), p_loss=float(passed), spreads=(0.0,))


@dataclass(frozen=True)
class _Test:
    """Student's t test of a mean difference."""

    difference: float
    error: float  # standard error
    freedom: float  # degrees of freedom

    def p(self, sign: float) -> float:
        """One-sided, for the hypothesis that sign · difference is not above 0."""
        return float(special.stdtr(self.freedom, -sign * self.difference / self.error))

    def interval(self, confidence: float) -> tuple[float, float]:
        half = _critical((1 - confidence) / 2, self.freedom) * self.error
        return float(self.difference - half), float(self.difference + half)


def _test(a: np.ndarray, b: np.ndarray, pairwise: bool) -> _Test:
    if pairwise:
        return _Test(float(np.mean(a - b)), float(np.std(a - b, ddof=1) / np.sqrt(len(a))), len(a) - 1)
    var_a, var_b = np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)
    fewer = min(len(a), len(b))
    freedom = fewer - 1 if fewer < ENOUGH else (var_a + var_b) ** 2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1))
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

    The observed spread and difference are taken as true, but a setting that looks better than its control counts as equal to it. None
    where no spread is known, or where over 1,000 seeds would be needed (a difference just at the margin).
    """
    effect = abs(finding.effect)
    if not finding.spreads or effect == 0:
        return None
    n = np.arange(2, MOST_SEEDS + 1)
    enough = n[_power(n, effect, finding.spreads, level) >= POWER]
    return max(1, int(enough[0]) - finding.n) if len(enough) else None


def _power(n: np.ndarray, effect: float, spreads: tuple[float, ...], level: float) -> np.ndarray:
    """Power of the one-sided t test with n pairs, or n values on each side, for each n: noncentral t."""
    variances = np.square(spreads)
    freedom = (n - 1) * variances.sum() ** 2 / np.square(variances).sum()  # n − 1 when paired
    shift = effect / np.sqrt(variances.sum() / n)
    critical = _critical(level, freedom)
    far = shift > FAR  # there the numerator, normal with this mean, hardly scatters: the denominator's chi squared decides alone
    alone = special.chdtr(freedom, freedom * (shift / critical) ** 2)
    return np.where(far, alone, 1 - special.nctdtr(freedom, np.where(far, 0.0, shift), critical))


def _critical(level: float, freedom: np.ndarray | float) -> np.ndarray | float:
    """The value that Student's t exceeds with the chance `level`."""
    return -special.stdtrit(freedom, level)


def ratio_interval(a: Estimate, b: Estimate, confidence: float) -> tuple[float, float] | None:
    """Fieller's interval for the ratio of two independent means, with Welch's degrees of freedom.

    a and b are positive, and so is their ratio: an interval that reaches below 0 ends there. None where it has no bounds or no width, since
    neither side scatters.
    """
    if a.n < 2 or b.n < 2:
        return None
    ratio, var_a, var_b = a.mean / b.mean, a.std**2 / a.n, b.std**2 / b.n
    scaled = ratio**2 * var_b
    if var_a + scaled == 0:
        return None
    freedom = (var_a + scaled) ** 2 / (var_a**2 / (a.n - 1) + scaled**2 / (b.n - 1))
    t = _critical((1 - confidence) / 2, freedom)
    g = t**2 * var_b / b.mean**2
    if g >= 1:  # the control's own mean cannot be told from zero
        return None
    half = t / b.mean * np.sqrt(var_a * (1 - g) + scaled)
    return max(0.0, float((ratio - half) / (1 - g))), float((ratio + half) / (1 - g))
