"""The budget: divides the work of the search between the groups of channels, so that the whole model gains
most.

Work is counted, not timed, so that the same model and seed give the same order on every machine. A unit is
about a nanosecond of one core of an x86 server.

For few columns the search tries all orders, which is cheap. For more columns, the remaining gain falls about
as steps^−0.55, and the total gain is about Σ|w| ÷ √rows, which grows as the square root of a step's work. One
more unit of work then gains the same in every group if the number of steps is proportional to (work of a
step)^−⅓. So each group gets work in proportion to (work of a step)^⅔.

Every group gets at least four steps. Not counted is the assignment in each step, which is cubic in the number
of stripes: it is negligible up to 2,000 columns, and takes 0.3 s a step at 4,096 columns and 8 s at 11,008.
"""

from dataclasses import dataclass
from math import comb

GROUP = 4  # columns in a stripe, of which 2:4 keeps two

WORK = 3e10  # half a minute of one core
CALLS = 1.5e5  # work of a step's dozen function calls
STRIPE = 4e3  # work of one stripe when all orders are tried
MAX_EXACT_COLUMNS = 16  # up to here all orders are tried; 20 columns take a hundred times as long
MIN_STEPS = 4  # fewer steps over all rows gain no more than this number over some rows
MAX_STEPS = 1000  # more steps would take most of the budget and gain a fortieth
MIN_ROWS = 16


@dataclass(frozen=True)
class Share:
    """How a matrix is searched."""

    steps: int
    rows: int  # fewer than all are drawn at random if even MIN_STEPS steps over all rows exceed the budget


def shares(shapes: list[tuple[int, int]], work: float) -> list[Share]:
    """One for each matrix [rows, columns]. Cheap matrices pass on to expensive ones what they do not use."""
    found, left, many = [Share(1, rows) for rows, _ in shapes], work, []
    for number, (rows, columns) in enumerate(shapes):
        cost = _step(rows, columns)
        if columns > MAX_EXACT_COLUMNS:
            many.append((cost, number))
        else:
            left -= cost
    parts = sum(cost ** (2 / 3) for cost, _ in many)
    for cost, number in sorted(many):
        rows, columns = shapes[number]
        steps = max(left, 0) * cost ** (-1 / 3) / parts
        drawn = min(rows, max(MIN_ROWS, int(rows * steps / MIN_STEPS)))
        found[number] = Share(min(max(int(steps), MIN_STEPS), MAX_STEPS), drawn)
        left, parts = left - found[number].steps * _step(drawn, columns), parts - cost ** (2 / 3)
    return found


def comparisons(rows: int, columns: int) -> int:
    """The comparisons of one step: every stripe with every column taken out, in every row."""
    return (columns // GROUP) ** 2 * rows


def _step(rows: int, columns: int) -> float:
    """The work of one step; for few columns, of the whole search."""
    if columns <= MAX_EXACT_COLUMNS:
        return comb(columns, GROUP) * (STRIPE + 3 * GROUP * rows)
    return CALLS + comparisons(rows, columns) + 1.5 * rows * columns
