"""The boundaries of looks (looks.py): the joint normal distribution of a test's values at several looks, by
recursive integration.

Armitage, McPherson and Rowe, J. R. Stat. Soc. A 1969, 132, 235; Jennison and Turnbull, Group Sequential
Methods, 2000, chapter 19.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

MIN_LEVEL, MAX_LEVEL = 1e-14, 0.5  # error probabilities for which boundaries are computed
TAIL = 9.0  # standard deviations beyond which a normal distribution has no weight
NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)
# error probability in all, share of the seeds -> error probability spent until then
Spending = Callable[[float, float], float]


def pocock(level: float, share: float) -> float:
    """Nearly the same boundary at each look."""
    return level * math.log(1 + (math.e - 1) * share)


def obrien_fleming(level: float, share: float) -> float:
    """Hardly anything at early looks. With few seeds these then decide nothing, so plans use Pocock's
    (experiments/looks).
    """
    return float(2 * special.ndtr(special.ndtri(level / 2) / math.sqrt(share)))


@dataclass(frozen=True)
class _State:
    """Where the sum of the data is at a look, for studies that go on: share of the seeds, points and their
    probabilities.
    """

    share: float
    points: np.ndarray
    mass: np.ndarray

    def beyond(self, share: float, bound: float) -> float:
        """The probability to go on until now and to exceed the bound at the next look. bound: of the sum,
        whose variance is the share.
        """
        step = share - self.share
        return float(self.mass @ special.ndtr((self.points - bound) / math.sqrt(step)))

    def within(self, share: float, bound: float) -> "_State":
        step, low = share - self.share, -TAIL * math.sqrt(share)
        points = low + (bound - low) * (NODES + 1) / 2  # [points]
        away = (points[:, None] - self.points) / math.sqrt(step)  # [points, points before]
        density = np.exp(-(away**2) / 2) @ self.mass / math.sqrt(2 * math.pi * step)
        return _State(share, points, density * WEIGHTS * (bound - low) / 2)


START = _State(0.0, np.zeros(1), np.ones(1))


@cache
def bounds(level: float, shares: tuple[float, ...], spending: Spending = pocock) -> tuple[float, ...]:
    """The standard normal value that decides at each look. shares: of the seeds, ascending to at most 1.
    level: one-sided, 1e-14 to 0.5.
    """
    from scipy.optimize import brentq  # slow to import, and only plans need it

    found, state, spent = [], START, 0.0
    for share in shares:
        now, root = spending(level, share), math.sqrt(share)
        bound = brentq(
            lambda z, at=state, due=now - spent, t=share, r=root: at.beyond(t, z * r) - due,
            -TAIL,
            TAIL,
            xtol=1e-9,
        )
        found.append(bound)
        state, spent = state.within(share, bound * root), now
    return tuple(found)


def levels(level: float, shares: tuple[float, ...], spending: Spending = pocock) -> tuple[float, ...]:
    """The level of the one-sided test at each look."""
    return tuple(float(special.ndtr(-bound)) for bound in bounds(level, shares, spending))


def repeated(p: float, shares: tuple[float, ...]) -> float:
    """The error probability in all by which a test with this p value decides at the last of these looks; 1
    for MAX_LEVEL and more.
    """
    from scipy.optimize import brentq

    def beyond(logarithm: float) -> float:
        return levels(math.exp(logarithm), shares)[-1] - p

    least, most = math.log(MIN_LEVEL), math.log(MAX_LEVEL)
    if beyond(least) >= 0:  # so small that no look matters
        return p
    return 1.0 if beyond(most) <= 0 else math.exp(brentq(beyond, least, most, xtol=1e-6))


def chance(p: float, level: float, look: int, shares: tuple[float, ...]) -> float:
    """The probability that the last look decides, if the seeds to come are like those until this look, where
    the p value is `p`.
    """
    share = shares[look - 1]
    ahead = -special.ndtri(p) / math.sqrt(share) - bounds(level, shares)[-1]
    return float(special.ndtr(ahead / math.sqrt(1 - share)))
