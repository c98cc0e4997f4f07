"""The budget: how much of the search each group of channels gets, so that a whole model costs what it may and gains most.

Work is counted, not timed: a unit is about a nanosecond of one core of an x86 server. So the same model and seed have the same order on
every machine, whatever it is busy with.

Few columns are cheap: all their orders are looked at. Of more, what is still to be gained falls about as steps^−0.55, and all that can be
gained is about Σ|w| ÷ √rows, which grows as the square root of a step's work. So one more unit of work gains the same in every group where
steps are as work^−⅓ of a step: a group gets work^⅔.

Every group gets four steps at least. The assignment of a step, which is cubic in the stripes, is not counted: it is nothing up to 2,000
columns, 0.3 s a step at 4,096 and 8 s at 11,008.
"""

from dataclasses import dataclass
from math import comb

from mpx.sparsity.permutation.stripes import GROUP

WORK = 3e10  # half a minute of one core
CALLS = 1.5e5  # of a step: a dozen calls
STRIPE = 4e3  # of one of all stripes of few columns
MOST_COLUMNS = 16  # whose best order is looked up among all; 20 take a hundred times as long
FEWEST_STEPS, MOST_STEPS = 4, 1000  # fewer over all rows gain no more than these over some; more cost most and gain a fortieth
FEWEST_ROWS = 16


@dataclass(frozen=True)
class Share:
    """How a matrix is searched."""

    steps: int
    rows: int  # as many are drawn where even the fewest steps over all of them are too dear


def shares(shapes: list[tuple[int, int]], work: float) -> list[Share]:
    """One for each matrix [rows, columns]. The cheapest leave to the dearer what they cannot use."""
    found, left, many = [Share(1, rows) for rows, _ in shapes], work, []
    for number, (rows, columns) in enumerate(shapes):
        cost = _step(rows, columns)
        if columns > MOST_COLUMNS:
            many.append((cost, number))
        else:
            left -= cost
    parts = sum(cost ** (2 / 3) for cost, _ in many)
    for cost, number in sorted(many):
        rows, columns = shapes[number]
        steps = max(left, 0) * cost ** (-1 / 3) / parts
        drawn = min(rows, max(FEWEST_ROWS, int(rows * steps / FEWEST_STEPS)))
        found[number] = Share(min(max(int(steps), FEWEST_STEPS), MOST_STEPS), drawn)
        left, parts = left - found[number].steps * _step(drawn, columns), parts - cost ** (2 / 3)
    return found


def comparisons(rows: int, columns: int) -> int:
    """Of one step, which compares every stripe with every column taken out, row by row."""
    return (columns // GROUP) ** 2 * rows


def _step(rows: int, columns: int) -> float:
    """The work of one step; of few columns that of the whole search."""
    if columns <= MOST_COLUMNS:
        return comb(columns, GROUP) * (STRIPE + 3 * GROUP * rows)
    return CALLS + comparisons(rows, columns) + 1.5 * rows * columns
