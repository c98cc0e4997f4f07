"""The statistics of a comparison against formulas written out here, and their error rates in simulation."""

import math

import numpy as np
import pytest
from scipy import special

from mpx.compare.comparison import Estimate, estimate
from mpx.compare.statistics import examine, holm, more_seeds, ratio_interval
from mpx.runs.result import METRICS

ACCURACY, PERPLEXITY = METRICS["test/accuracy"], METRICS["test/perplexity"]


def t_below(t, freedom):
    """Student's distribution function, by the incomplete beta function."""
    tail = 0.5 * special.betainc(freedom / 2, 0.5, freedom / (freedom + t * t))
    return 1 - tail if t > 0 else tail


def t_quantile(share, freedom):
    low, high = -1e9, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def by_hand(s, c, paired):
    """Mean difference, its standard error and degrees of freedom."""
    if paired:
        d = [a - b for a, b in zip(s, c, strict=True)]
        mean = math.fsum(d) / len(d)
        return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in d) / (len(d) - 1) / len(d)), len(d) - 1
    parts = []
    for values in (s, c):
        mean = math.fsum(values) / len(values)
        parts.append(
            (mean, math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values), len(values))
        )
    (ms, vs, ns), (mc, vc, nc) = parts
    welch = (vs + vc) ** 2 / (vs**2 / (ns - 1) + vc**2 / (nc - 1))
    return ms - mc, math.sqrt(vs + vc), welch if min(ns, nc) >= 4 else min(ns, nc) - 1


@pytest.mark.parametrize("metric", [ACCURACY, PERPLEXITY], ids=lambda metric: metric.name)
@pytest.mark.parametrize("paired", [True, False])
def test_agrees_with_closed_formulas(metric, paired):
    """250 random studies each, 1,000 in all."""
    rng = np.random.default_rng(7)
    for _ in range(250):
        n, m = rng.integers(2, 12, 2)
        m = n if paired else m
        scale, margin, confidence = (0.9, 0.01, 0.95) if metric is ACCURACY else (90.0, 0.02, 0.9)
        s = list(rng.normal(scale, scale * rng.uniform(0.001, 0.02), n))
        c = list(rng.normal(scale, scale * rng.uniform(0.001, 0.02), m))
        found = examine(
            dict(enumerate(s)),
            {seed + (0 if paired else 100): v for seed, v in enumerate(c)},
            metric,
            margin,
            confidence,
        )
        difference, error, freedom = by_hand(s, c, paired)
        half = t_quantile((1 + confidence) / 2, freedom) * error
        moved = [x - margin for x in c] if metric is ACCURACY else [x * (1 + margin) for x in c]
        lead, error_of_lead, freedom_of_lead = by_hand(s, moved, paired)
        p = 1 - t_below(metric.sign * lead / error_of_lead, freedom_of_lead)
        assert found.method == ("paired t" if paired else "Welch")
        assert found.difference == pytest.approx(difference, rel=1e-9, abs=1e-12 * scale)
        assert (found.low, found.high) == pytest.approx(
            (difference - half, difference + half), rel=1e-9, abs=1e-9
        )
        assert (found.p_no_loss, found.p_loss) == pytest.approx((p, 1 - p), rel=1e-9, abs=1e-12)


def test_pairs_the_seeds_that_both_have():
    setting, control = {0: 0.90, 1: 0.92, 7: 0.1}, {1: 0.925, 0: 0.902, 5: 0.99}
    found = examine(setting, control, ACCURACY, 0.01, 0.95)
    assert (found.method, found.n) == ("paired t", 2)
    assert found.difference == pytest.approx((0.90 - 0.902 + 0.92 - 0.925) / 2)


@pytest.mark.parametrize(
    ("s", "c"),
    [
        ((0.9,) * 5, (0.9,) * 5),
        ((0.95,) * 4, (0.9,) * 4),
        ((0.9, 0.9 + 3e-8, 0.9 - 3e-8), (0.9,) * 3),
        ((0.9,) * 5, (0.89, 0.90, 0.91, 0.90, 0.89)),
    ],
    ids=["all tie", "both sides tie", "tie but for rounding", "one side ties"],
)
@pytest.mark.parametrize("apart", [0, 10], ids=["same seeds", "other seeds"])
def test_values_without_spread_decide_nothing(s, c, apart):
    found = examine(
        dict(enumerate(s)), {seed + apart: value for seed, value in enumerate(c)}, ACCURACY, 0.01, 0.95
    )
    assert (found.method, found.low, found.p_no_loss, found.p_loss) == ("equal seeds", None, None, None)
    assert more_seeds(found, 0.05) is None


def false_no_loss(studies, margin, draw):
    """Share of studies called no loss at 5 %. draw: the correct ones of 360 test images, (setting's,
    control's) seeds of a study.
    """
    wrong = 0
    for _ in range(studies):
        s, c = (dict(enumerate(np.rint(images) / 360)) for images in draw())
        found = examine(s, c, ACCURACY, margin, 0.95)
        wrong += found.p_no_loss is not None and found.p_no_loss < 0.05
    return wrong / studies


def chance(studies, level=0.05):
    """The largest share that simulation may find of a test that keeps its level."""
    return level + 3 * math.sqrt(level * (1 - level) / studies)


def test_false_no_loss_is_rare_too_where_the_metric_is_coarse():
    """360 test images, two seeds that scatter by half an image, a true loss of the margin: often all agree on
    each side.
    """
    rng = np.random.default_rng(8)

    def draw():
        control = rng.normal(342 + rng.uniform(-0.5, 0.5), 0.5, 2)
        return rng.normal(342 - 3.6, 0.5, 2), control

    assert false_no_loss(2000, 0.01, draw) <= chance(2000)


def test_equal_differences_of_a_coarse_metric_are_no_certainty():
    """Both seeds lose one image of 360, by chance: that is not a spread of zero."""
    c = {0: 340 / 360, 1: 343 / 360}
    found = examine({seed: value - 1 / 360 for seed, value in c.items()}, c, ACCURACY, 0.01, 0.95)
    assert found.method == "Welch"
    assert 0.05 < found.p_no_loss < 0.5


def test_rounding_to_single_precision_is_no_spread():
    """A project's means in float32 tie but for their rounding. A t test would take that for how the
    difference scatters.
    """
    c = {seed: float(np.float32(value)) for seed, value in enumerate((340 / 360, 343 / 360))}
    found = examine(
        {seed: value - 1 / 360 + 6e-8 * seed for seed, value in c.items()}, c, ACCURACY, 0.01, 0.95
    )
    assert (found.method, found.p_no_loss > 0.05) == ("Welch", True)


def test_single_values_cannot_tell():
    found = examine({0: 0.9}, {0: 0.95, 1: 0.96}, ACCURACY, 0.01, 0.95)
    assert (found.method, found.low, found.p_no_loss) == ("none", None, None)
    assert found.difference == pytest.approx(-0.055)
    assert more_seeds(found, 0.05) is None


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def rate(studies, sizes, spreads, seed, metric=ACCURACY):
    """Share of studies called no loss at 5 % whose true loss is just the margin. sizes: (n,) paired, or both
    sides'.
    """
    rng = np.random.default_rng(seed)
    scale, margin = (1.0, 0.01) if metric is ACCURACY else (90.0, 0.01)
    true = 0.94 if metric is ACCURACY else 90.0 * 1.01
    wrong = 0
    for _ in range(studies):
        s = rng.normal(true, spreads[0] * scale, sizes[0])
        c = rng.normal(0.95 if metric is ACCURACY else 90.0, spreads[-1] * scale, sizes[-1])
        apart = 0 if len(sizes) == 1 else 100
        found = examine(dict(enumerate(s)), {i + apart: v for i, v in enumerate(c)}, metric, margin, 0.95)
        wrong += found.p_no_loss is not None and found.p_no_loss < 0.05
    return wrong / studies


@pytest.mark.parametrize("metric", [ACCURACY, PERPLEXITY], ids=lambda metric: metric.name)
@pytest.mark.parametrize(
    ("sizes", "spreads"),
    [
        ((2,), (0.005,)),
        ((5,), (0.005, 0.02)),
        ((3, 5), (0.005,)),
        ((5, 5), (0.002, 0.008)),
        ((2, 5), (0.02, 0.005)),
    ],
)
def test_false_no_loss_is_as_rare_as_stated(metric, sizes, spreads):
    assert rate(1000, sizes, spreads, 3, metric) <= chance(1000)


def test_more_seeds_give_the_power_that_they_promise():
    """A study of five seeds says how many it takes; with so many, 80 % of studies with that spread and
    difference decide.
    """
    rng = np.random.default_rng(5)
    d = np.array([-0.013, -0.001, 0.006, -0.008, 0.001])
    c = 0.95 + 0.01 * np.arange(1000)
    found = examine(dict(enumerate(c[:5] + d)), dict(enumerate(c[:5])), ACCURACY, 0.01, 0.95)
    assert found.p_no_loss > 0.05
    n = 5 + more_seeds(found, 0.05)
    decided = [
        examine(
            dict(enumerate(c[:n] + rng.normal(d.mean(), d.std(ddof=1), n))),
            dict(enumerate(c[:n])),
            ACCURACY,
            0.01,
            0.95,
        )
        for _ in range(1000)
    ]
    power = np.mean([finding.p_no_loss < 0.05 for finding in decided])
    assert 0.77 < power < 0.88


def test_a_gain_is_not_counted_on_and_a_loss_takes_seeds_too():
    control = {0: 0.949, 1: 0.95, 2: 0.951}
    gains = examine({0: 0.95, 1: 0.99, 2: 1.0}, control, ACCURACY, 0.01, 0.95)
    assert gains.effect == pytest.approx(0.01)
    losing = examine({0: 0.95, 1: 0.92, 2: 0.90}, control, ACCURACY, 0.01, 0.95)
    assert losing.effect < 0
    assert more_seeds(losing, 0.05) >= 1
    at_margin = examine({0: 0.93, 1: 0.95}, {0: 0.945, 1: 0.955}, ACCURACY, 0.01, 0.95)
    assert more_seeds(at_margin, 0.05) is None


@pytest.mark.parametrize(("spread", "few", "many", "most"), [(8, 4, 5, 0.975), (2, 2, 10, 1.0)])
def test_fieller_covers_the_true_ratio(spread, few, many, most):
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(2000):
        a, b = estimate(list(rng.normal(300, 10, few))), estimate(list(rng.normal(100, spread, many)))
        low, high = ratio_interval(a, b, 0.95)
        hits += low <= 3 <= high
    assert 0.935 < hits / 2000 <= most


def test_fieller_bounds_are_where_the_difference_is_just_significant():
    """By definition: r is in the interval where a − r·b does not differ from 0, with the same degrees of
    freedom.
    """
    a, b = Estimate(310.0, 12.0, 4), Estimate(100.0, 5.0, 6)
    va, vb = a.std**2 / a.n, b.std**2 / b.n * (a.mean / b.mean) ** 2
    t = t_quantile(0.975, (va + vb) ** 2 / (va**2 / 3 + vb**2 / 5))
    for bound in ratio_interval(a, b, 0.95):
        assert abs(a.mean - bound * b.mean) / math.sqrt(
            a.std**2 / a.n + bound**2 * b.std**2 / b.n
        ) == pytest.approx(t, rel=1e-9)


def test_fieller_without_bounds_or_variance():
    assert ratio_interval(Estimate(3.0, 0.0, 2), Estimate(1.5, 0.0, 2), 0.95) is None
    assert ratio_interval(Estimate(3.0, None, 1), Estimate(1.5, 0.1, 2), 0.95) is None
    assert ratio_interval(Estimate(3.0, 1.0, 2), Estimate(1.5, 1.5, 2), 0.95) is None
    low, high = ratio_interval(Estimate(3.0, 1.0, 2), Estimate(1.5, 0.01, 2), 0.95)
    assert (low, high > 5) == (0.0, True)  # two scattered runs of a rate, which is never below zero


def test_estimate():
    assert estimate([]) is None
    assert estimate([3.0]) == Estimate(3.0, None, 1)
    assert estimate([1.0, 2.0, 3.0]) == Estimate(2.0, 1.0, 3)
