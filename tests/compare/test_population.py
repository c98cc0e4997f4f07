"""The interval for a population of samples, against formulas written out here and in simulation."""

import math

import numpy as np
import pytest
from scipy import special

from mpx.compare.population import scatter


def rights(seed, seeds=4, samples=200, share=0.9):
    """Of the samples some are wrong for every seed."""
    draw = np.random.default_rng(seed)
    return ((draw.random((seeds, samples)) < 0.95) & (draw.random(samples) < share)).astype(np.uint8)


def t(freedom, level):
    return -special.stdtrit(freedom, level)


def test_the_terms_of_paired_seeds_are_those_of_an_analysis_of_variance():
    s, c = rights(0), rights(1)
    x = s.astype(float) - c  # [seeds, samples]
    k, n = x.shape
    mean = x.mean()
    of_seeds = ((x.mean(1) - mean) ** 2).sum() / (k - 1)
    rest = ((x - x.mean(1, keepdims=True) - x.mean(0) + mean) ** 2).sum() / ((k - 1) * (n - 1))
    of_samples = (((x.mean(0) - mean) ** 2).sum() + 2) / (n + 1)
    found = scatter(s, c, paired=True)
    assert found.mean == pytest.approx(mean)
    ((variance, freedom),) = found.seeds
    assert (variance, freedom) == (pytest.approx(of_seeds / k), k - 1)
    assert found.samples == pytest.approx((of_samples - rest / k) / n)
    half = math.sqrt(t(3, 0.025) ** 2 * of_seeds / k + special.ndtri(0.975) ** 2 * found.samples)
    assert found.interval(0.95) == pytest.approx((mean - half, mean + half))


def test_other_seeds_on_both_sides_add_a_term_each():
    s, c = rights(0, seeds=3), rights(1, seeds=5)
    found = scatter(s, c, paired=False)
    assert found.mean == pytest.approx(s.mean() - c.mean())
    assert [freedom for _, freedom in found.seeds] == [2, 4]
    assert [variance for variance, _ in found.seeds] == pytest.approx(
        [side.mean(1).var(ddof=1) / len(side) for side in (s, c)]
    )


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_p_is_half_of_what_the_interval_leaves_where_it_ends(paired, confidence):
    found = scatter(rights(0), rights(1, share=0.85), paired=paired)
    low, high = found.interval(confidence)
    assert found.p(1, low) == pytest.approx((1 - confidence) / 2, rel=1e-6)
    assert found.p(-1, high) == pytest.approx((1 - confidence) / 2, rel=1e-6)
    assert found.p(1, high) == pytest.approx((1 + confidence) / 2, rel=1e-6)


def test_no_interval_has_the_width_zero():
    """Settings that agree in all 360 samples may differ in up to 3 of 360 others: the chance to see none of
    them is then 5 %.
    """
    low, high = scatter(np.ones((5, 360)), np.ones((5, 360)), paired=True).interval(0.95)
    assert (low, high) == (pytest.approx(-high), pytest.approx(1.96 * math.sqrt(2 / 361 / 360), rel=1e-3))
    assert 2.5 < 360 * high < 3


def test_it_covers_a_population_that_only_samples_and_one_that_only_seeds_tell_apart():
    draw, inside = np.random.default_rng(3), {"samples": 0, "seeds": 0}
    for _ in range(400):
        c = np.ones((3, 300))
        fails = draw.random(300) < 0.05  # for every seed
        low, high = scatter(c - fails, c, paired=True).interval(0.95)
        inside["samples"] += low <= -0.05 <= high
        shares = np.clip(draw.normal(0.1, 0.03, (3, 1)), 0, 1)  # of each seed, in samples of its own
        low, high = scatter(c - (draw.random((3, 300)) < shares), c, paired=True).interval(0.95)
        inside["seeds"] += low <= -0.1 <= high
    assert all(0.92 < found / 400 < 0.985 for found in inside.values()), inside
