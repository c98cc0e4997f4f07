"""Non-inferiority tests: is one setting's metric worse than another's by less than a margin? For few seeds,
at a stated confidence.

The test of non-inferiority is one-sided, at level 1 − confidence. Its null hypothesis is that the loss is the
margin or more. Let s be the setting's values, c the control's, and c′ the control's values moved down by the
margin (c − margin for accuracy; c·(1 + margin) for perplexity, where lower is better). The test asks whether
s is better than c′, so a relative margin is part of the test and not a constant estimated from the same data.
The opposite test asks whether the loss exceeds the margin.

If at least two seeds completed on both sides, those seeds are paired, since they share initial weights and
data order; otherwise the test is Welch's. Both assume normally distributed values. The paired test then holds
its level exactly, and Welch's within half a percent from four values on each side. With fewer values Welch's
reaches 7 % for 5 %; the test then uses the degrees of freedom of the smaller side, which is always
conservative (Hsu 1938).

Values of one side without any spread do not show how its seeds scatter: all may agree by chance where the
test set is small, or since a loop never uses its seed. Nothing is decided then. Pairs whose differences have
no spread although the values do, as those of one test sample, are tested by Welch's test, which takes the
spread of the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special  # scipy.stats is slow to import

from mpx.compare.comparison import Estimate, Method
from mpx.runs.result import Metric

POWER = 0.8  # the advised number of seeds decides with this probability
MAX_ADVISED_SEEDS = 100
LARGE_SHIFT = 30.0  # above this mean, a noncentral t approaches the limits of double precision
MIN_VALUES = 4  # values on a side for Welch's degrees of freedom
ROUNDING = 1e-6  # largest relative rounding error of a mean in float32


@dataclass(frozen=True)
class Finding:
    """The test result for a setting and its control, before the correction for several settings."""

    method: Method
    difference: float
    n: int  # pairs, or values on the smaller side
    # distance from the margin, positive if the loss is smaller. A gain counts as 0, so that the advised
    # number of seeds does not rely on it.
    effect: float
    low: float | None = None
    high: float | None = None
    p_no_loss: float | None = None  # for the hypothesis that the loss is the margin or more
    p_loss: float | None = None  # for the hypothesis that the loss is at most the margin
    # standard deviation of the paired differences, or of both sides; () if unknown
    spreads: tuple[float, ...] = ()


def examine(
    setting: Mapping[int, float],
    control: Mapping[int, float],
    metric: Metric,
    margin: float,
    confidence: float,
) -> Finding:
    """Test a setting against its control. setting, control: seed -> value, at least one each. margin: as in
    Question.
    """
    shared = sorted(setting.keys() & control.keys())
    paired = len(shared) >= 2
    s = np.array(
        [setting[seed] for seed in shared] if paired else list(setting.values()), dtype=np.float64
    )  # [seeds]
    c = np.array([control[seed] for seed in shared] if paired else list(control.values()), dtype=np.float64)
    moved = c - metric.sign * margin * np.abs(c) if metric.relative else c - metric.sign * margin
    better = float(metric.sign * (s.mean() - moved.mean()))
    n, effect = min(len(s), len(c)), min(better, float(metric.sign * (c.mean() - moved.mean())))
    finding = Finding(Method.NONE, float(s.mean() - c.mean()), n, effect)
    if n < 2:
        return finding
    noise = ROUNDING * float(max(np.abs(s).max(), np.abs(c).max()))
    if min(np.ptp(s), np.ptp(c)) <= noise:
        return replace(finding, method=Method.TIED)
    pairwise = paired and bool(np.ptp(s - c) > noise and np.ptp(s - moved) > noise)
    low, high = _test(s, c, pairwise).interval(confidence)
    against = _test(s, moved, pairwise)
    sides = (s - moved,) if pairwise else (s, moved)
    return replace(
        finding, method=Method.PAIRED if pairwise else Method.WELCH, low=low, high=high,
        p_no_loss=against.p(metric.sign), p_loss=against.p(-metric.sign),
        spreads=tuple(float(np.std(side, ddof=1)) for side in sides),
    )  # fmt: skip


@dataclass(frozen=True)
class _Test:
    """Student's t test of a mean difference."""

    difference: float
    error: float  # standard error
    freedom: float  # degrees of freedom

    def p(self, sign: float) -> float:
        """One-sided p for the hypothesis that sign · difference is at most 0."""
        return float(special.stdtr(self.freedom, -sign * self.difference / self.error))

    def interval(self, confidence: float) -> tuple[float, float]:
        half = _critical((1 - confidence) / 2, self.freedom) * self.error
        return float(self.difference - half), float(self.difference + half)


def _test(a: np.ndarray, b: np.ndarray, pairwise: bool) -> _Test:
    if pairwise:
        return _Test(float(np.mean(a - b)), float(np.std(a - b, ddof=1) / np.sqrt(len(a))), len(a) - 1)
    var_a, var_b = np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)
    fewer = min(len(a), len(b))
    freedom = (
        fewer - 1
        if fewer < MIN_VALUES
        else (var_a + var_b) ** 2 / (var_a**2 / (len(a) - 1) + var_b**2 / (len(b) - 1))
    )
    return _Test(float(np.mean(a) - np.mean(b)), float(np.sqrt(var_a + var_b)), float(freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: rejecting all corrected p below `level` keeps the chance of any wrong
    rejection at most `level`.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def more_seeds(finding: Finding, level: float) -> int | None:
    """Estimate how many more seeds per setting give an 80 % chance of a decision at `level`.

    The estimate takes the observed spread and difference as true, but treats a setting better than its
    control as equal to it. None if the spread is unknown or if over 100 seeds would be needed, because the
    scatter is large beside the distance to the margin.
    """
    effect = abs(finding.effect)
    if not finding.spreads or effect == 0:
        return None
    n = np.arange(2, MAX_ADVISED_SEEDS + 1)
    enough = n[_power(n, effect, finding.spreads, level) >= POWER]
    return max(1, int(enough[0]) - finding.n) if len(enough) else None


def _power(n: np.ndarray, effect: float, spreads: tuple[float, ...], level: float) -> np.ndarray:
    """Power of the one-sided t test for each n (pairs, or values on each side), from the noncentral t
    distribution.
    """
    variances = np.square(spreads)
    freedom = (n - 1) * variances.sum() ** 2 / np.square(variances).sum()  # n − 1 if paired
    shift = effect / np.sqrt(variances.sum() / n)
    critical = _critical(level, freedom)
    # the spread of the numerator is then negligible, and the chi-squared denominator determines the power
    far = shift > LARGE_SHIFT
    approximate = special.chdtr(freedom, freedom * (shift / critical) ** 2)
    return np.where(far, approximate, 1 - special.nctdtr(freedom, np.where(far, 0.0, shift), critical))


def _critical(level: float, freedom: np.ndarray | float) -> np.ndarray | float:
    """The value that Student's t exceeds with probability `level`."""
    return -special.stdtrit(freedom, level)


def ratio_interval(a: Estimate, b: Estimate, confidence: float) -> tuple[float, float] | None:
    """Fieller's interval for the ratio of two independent means, with Welch's degrees of freedom.

    With 2 values on one side and 10 on the other, as when the speed of some seeds does not count, a 95 %
    interval with Welch's degrees of freedom covers the ratio in as few as 88 % of studies. The degrees of
    freedom of the smaller side are then used instead. With equal numbers of values, Welch's cover it in 94 %.

    a and b are positive, so the interval is cut off at 0. None if the interval is unbounded, or if neither
    side has any spread.
    """
    if a.std is None or b.std is None:
        return None
    ratio, var_a, var_b = a.mean / b.mean, a.std**2 / a.n, b.std**2 / b.n
    scaled = ratio**2 * var_b
    if var_a + scaled == 0:
        return None
    fewer = min(a.n, b.n)
    welch = (var_a + scaled) ** 2 / (var_a**2 / (a.n - 1) + scaled**2 / (b.n - 1))
    freedom = fewer - 1 if fewer < MIN_VALUES and a.n != b.n else welch
    t = _critical((1 - confidence) / 2, freedom)
    g = t**2 * var_b / b.mean**2
    if g >= 1:  # b's mean does not differ significantly from zero
        return None
    half = t / b.mean * np.sqrt(var_a * (1 - g) + scaled)
    return max(0.0, float((ratio - half) / (1 - g))), float((ratio + half) / (1 - g))
