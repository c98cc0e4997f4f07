"""Looks: tests after each round of seeds, which together err no more often than one test. `until=decided`
trains so.

Testing after each seed, and stopping once the test says "no loss", errs more often than the level of the
test. A plan therefore fixes beforehand when to look and the largest number of seeds. A function of the share
of seeds that have run spends its error probability over the looks (Lan and DeMets, Biometrika 1983, 70, 659).
Boundaries follow from the joint normal distribution of the looks by recursive integration (Armitage,
McPherson and Rowe, J. R. Stat. Soc. A 1969, 132, 235; Jennison and Turnbull, Group Sequential Methods, 2000,
chapters 4, 7, 19). A t test is compared with the boundary's level instead of its value (Pocock, Biometrika
1977, 64, 191). With few seeds it then errs up to a tenth more often than normal values would, so a plan
spends no more than 85 % of the error probability (experiments/looks measures it).

The repeated p value at a look is the smallest error probability by which the plan decides there (Jennison and
Turnbull, chapter 9). Holm's correction for several settings then applies to these as to any p values, which
is the group-sequential Holm procedure of Maurer and Bretz (Stat. Biopharm. Res. 2013, 5, 311) that looks back
at no earlier look.
"""

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

from mpx.compare.run import Run
from mpx.errors import UserError
from mpx.settings.check import check_looks

SPENT = 0.85  # share of the error probability that a plan spends
HOPELESS = 0.02  # a chance of a decision below which further looks are not worth their runs


@dataclass(frozen=True)
class Look:
    """The look of a plan at which a decision was made."""

    number: int  # 0: before the first
    of: int
    seeds: int
    further: int | None  # number of seeds of the next look; None if there is none, or it would hardly decide

    @property
    def words(self) -> str:
        """`look 2 of 5, at 8 seeds`."""
        if not self.number:
            return f"before the first of {self.of} looks"
        return f"look {self.number} of {self.of}, at {self.seeds} seeds"


@dataclass(frozen=True)
class Plan:
    """What `until=decided` states before the first run: the configuration `until`, which each record
    keeps.
    """

    margin: float
    confidence: float
    control: str
    max_seeds: int
    looks: int

    @classmethod
    def read(cls, text: str) -> "Plan":
        """The reverse of `text`. Raises ValueError or TypeError for any other text."""
        plan = cls(**json.loads(text))
        check_looks(asdict(plan))
        return plan

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of seeds at each look."""
        return tuple(math.ceil(look * self.max_seeds / self.looks) for look in range(1, self.looks + 1))

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(size / self.max_seeds for size in self.sizes)

    def reached(self, seeds: Collection[int]) -> int:
        """The number of looks for which all seeds are there, counted from 0."""
        return sum(set(seeds).issuperset(range(size)) for size in self.sizes)

    def seeds_at(self, look: int) -> int:
        return self.sizes[look - 1] if look else 0

    def levels(self, level: float) -> tuple[float, ...]:
        """The level of the test at each look, for an error probability `level` in all."""
        from mpx.compare.boundaries import levels

        return levels(SPENT * level, self.shares)

    def confidence_at(self, look: int, confidence: float) -> float:
        """The confidence of the interval at this look. The intervals of all looks together hold with
        probability `confidence`.
        """
        return 1 - 2 * self.levels((1 - confidence) / 2)[look - 1]

    def repeated(self, p: float, look: int) -> float:
        """The repeated p value for a p value of the test at this look."""
        from mpx.compare.boundaries import repeated

        smallest = repeated(p, self.shares[:look])
        return min(1.0, smallest if smallest == p else smallest / SPENT)

    def hopeless(self, p: float, look: int, level: float) -> bool:
        """Whether the last look will hardly decide if the seeds to come are like those so far (Jennison and
        Turnbull, chapter 10).

        p: the smaller one of the two tests, for no loss and for a loss. Stopping so makes no decision, so it
        costs power but no error.
        """
        from mpx.compare.boundaries import chance

        return look == self.looks or chance(p, SPENT * level, look, self.shares) < HOPELESS


def plan_of(runs: Iterable[Run]) -> Plan | None:
    """The plan under which runs of a study were made; None without one. Raises UserError if there are two."""
    plans = list(dict.fromkeys(run.looks for run in runs if run.looks is not None))
    if len(plans) > 1:
        raise UserError(
            f"the runs were made under different plans of looks, {plans[0]} and {plans[1]}. "
            "Compare each by itself."
        )
    return Plan.read(plans[0]) if plans else None
