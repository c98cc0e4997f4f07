"""Search for an order of a matrix's columns in which 2:4 pruning keeps more magnitude.

    found = search(matrix, share)           # matrix: [rows, columns], columns % 4 == 0; share: of the work
    matrix[:, found.order]                  # 2:4 keeps found.after of it, not found.before

All that matters is which four columns share a stripe, of which 2:4 keeps the two larger values in every row.
Each step takes one random column out of every stripe and returns them all in the best way. If column x joins
three others, whose magnitudes in a row are t1 ≥ t2 ≥ t3, the stripe keeps Σ t1 + max(t2, x) over the rows,
and Σ max(t2, x) = ½ Σ (t2 + x + |t2 − x|). So one matrix of L1 distances gives the value of every column in
every stripe, and the best return is a linear assignment. Noise on that matrix, which falls to zero, keeps
early steps out of poor optima.

The objective is that of Pool and Yu, Channel Permutations for N:M Sparsity, NeurIPS 2021. They optimise two
stripes at a time.

The work is divided between the groups of channels, so that the whole model gains most. It is counted, not
timed, so that the same model and seed give the same order on every machine. A unit is about a nanosecond of
one core of an x86 server. For few columns the search tries all orders, which is cheap. For more columns, the
remaining gain falls about as steps^−0.55, and the total gain is about Σ|w| ÷ √rows, which grows as the square
root of a step's work. One more unit of work then gains the same in every group if the number of steps is
proportional to (work of a step)^−⅓. So each group gets work in proportion to (work of a step)^⅔.

Every group gets at least four steps. Not counted is the assignment in each step, which is cubic in the number
of stripes: it is negligible up to 2,000 columns, and takes 0.3 s a step at 4,096 columns and 8 s at 11,008.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mpx.system.machine import cpu_threads

GROUP = 4  # columns in a stripe, of which 2:4 keeps two

WORK = 3e10  # half a minute of one core
CALLS = 1.5e5  # work of a step's dozen function calls
STRIPE = 4e3  # work of one stripe when all orders are tried
MAX_EXACT_COLUMNS = 16  # up to here all orders are tried; 20 columns take a hundred times as long
MIN_STEPS = 4  # fewer steps over all rows gain no more than this number over some rows
MAX_STEPS = 1000  # more steps would take most of the budget and gain a fortieth
MIN_ROWS = 16
# Up to this many comparisons a step runs on the CPU, also for a matrix on a GPU: a GPU has little to do then
# and waits for the host four times. ResNet-20, with 23,315 steps of at most 3e5 comparisons, took 60 to 91 s
# on a shared H200 (experiments/sparsity_pilot) and 5.4 s on one core of a Xeon.
ON_CPU = 1e6
# Up to this many comparisons a step runs in one thread. On two idle cores two threads gain nothing, and
# beside other jobs they take ten times as long, since every step waits for both.
ONE_THREAD = 3e5
AT_ONCE = 128  # stripes per chunk, which bounds the memory
NOISE = 0.05  # × the mean magnitude × √rows, which is the spread of a column's sum


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


@dataclass
class Found:
    """A column order and the magnitude that it keeps."""

    order: Tensor  # int64 [columns] on the CPU: new column i is old column order[i]
    before: float  # Σ|w| that 2:4 keeps in the original order, summed in float64
    after: float  # the same in the new order; never less than `before`


def search(matrix: Tensor, share: Share, *, seed: int = 0) -> Found:
    """The best order found with this share of the work; for up to 16 columns, the best of all orders. The
    same seed gives the same order.

    matrix: finite FP32 or FP64 numbers [rows, columns] on any device, more than 4 columns. Weights with the
    same input channels are stacked along the rows; see `rows_of`.
    """
    columns = matrix.abs().t().contiguous()
    count, height = columns.shape
    before = kept(columns)
    random = np.random.default_rng(seed)
    # so that no sum of huge values overflows
    looked_at = torch.ldexp(columns, -torch.frexp(columns.max()).exponent.clamp(min=0))
    if share.rows < height:
        looked_at = looked_at[
            :, torch.from_numpy(np.sort(random.choice(height, share.rows, replace=False))).to(columns.device)
        ]
    step = comparisons(share.rows, count)
    if step <= ON_CPU:
        looked_at = looked_at.cpu()
    with cpu_threads(1 if step <= ONE_THREAD else torch.get_num_threads()):
        stripes = (
            best_stripes(looked_at) if count <= MAX_EXACT_COLUMNS else _anneal(looked_at, share.steps, random)
        )
    order = torch.from_numpy(_canonical(stripes).reshape(-1))
    after = kept(columns[order.to(columns.device)])
    return Found(order, before, after) if after > before else Found(torch.arange(count), before, before)


def _anneal(columns: Tensor, steps: int, random: np.random.Generator) -> np.ndarray:
    """The best stripes found: column numbers [stripes, 4]. columns: [columns, rows]."""
    stripes = np.arange(len(columns)).reshape(-1, GROUP)
    everywhere = np.arange(len(stripes))
    sums = columns.sum(1).cpu().numpy()
    start = NOISE * float(columns.mean()) * columns.shape[1] ** 0.5
    best, most = stripes, -np.inf
    for step in range(steps):
        out = random.integers(0, GROUP, len(stripes))
        taken = stripes[everywhere, out]  # [stripes]
        others = stripes[np.arange(GROUP) != out[:, None]].reshape(-1, GROUP - 1)
        value = _values(columns, sums, others, taken)
        noise = random.gumbel(size=value.shape) * (start * (1 - step / steps))
        chosen = linear_sum_assignment(value + noise, maximize=True)[1]
        stripes = stripes.copy()
        stripes[everywhere, out] = taken[chosen]
        if (total := value[everywhere, chosen].sum()) > most:
            best, most = stripes, total
    return best


def _values(columns: Tensor, sums: np.ndarray, others: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """float64 [stripes, taken]: what each stripe of `others` [stripes, 3] keeps if each column of `taken`
    [stripes] joins it.
    """
    device = columns.device
    a, b, c = columns[torch.from_numpy(others.T.copy()).to(device)]  # each [stripes, rows]
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    first, second = torch.maximum(high, c), torch.maximum(low, torch.minimum(high, c))
    distance = torch.cdist(second, columns[torch.from_numpy(taken).to(device)], p=1)
    alone = (first.sum(1) + 0.5 * second.sum(1)).double()  # [stripes]
    return (0.5 * distance.double() + alone[:, None]).cpu().numpy() + 0.5 * sums[taken]


def _canonical(stripes: np.ndarray) -> np.ndarray:
    """The same stripes in a unique order: columns ascending in each stripe, stripes by their first column."""
    ascending = np.sort(stripes, axis=1)
    return ascending[np.argsort(ascending[:, 0])]


def rows_of(weight: Tensor) -> Tensor:
    """A weight [out, in, *kernel] as the matrix [out · kernel positions, in] whose columns are its input
    channels.
    """
    return weight.detach().transpose(1, -1).reshape(-1, weight.shape[1])


def kept(columns: Tensor) -> float:
    """Σ of the 2 largest of every 4 neighbours. columns: magnitudes [columns, rows]."""
    return float(kept_by_stripe(columns).sum())


def kept_by_stripe(columns: Tensor) -> Tensor:
    """As `kept`, for each stripe: float64 [stripes]."""
    a, b, c, d = columns.unflatten(0, (-1, GROUP)).unbind(1)
    largest = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
    of_losers = torch.maximum(torch.minimum(a, b), torch.minimum(c, d))
    second = torch.maximum(of_losers, torch.minimum(torch.maximum(a, b), torch.maximum(c, d)))
    return largest.sum(1, dtype=torch.float64) + second.sum(1, dtype=torch.float64)


def best_stripes(columns: Tensor) -> np.ndarray:
    """The stripes that keep most, by dynamic programming: the best stripes of a set are one stripe and the
    best stripes of the rest. Returns column numbers, int64 [stripes, 4]. columns: magnitudes [columns, rows].
    """
    count = len(columns)
    stripes = _subsets(count, GROUP)
    # per set (bits of an index): what it keeps, its first stripe
    most, first = np.zeros(2**count), np.zeros(2**count, dtype=np.int64)
    number = (1 << stripes).sum(1)
    most[number], first[number] = _kept(columns, stripes), number
    for size in range(2 * GROUP, count + 1, GROUP):
        members = 1 << _subsets(count, size, without_first=size < count)  # [sets, size]
        whole = members.sum(1)
        # [sets, ways]: all stripes with the first member
        stripe = members[:, :1] + members[:, 1 + _subsets(size - 1, GROUP - 1)].sum(2)
        value = most[stripe] + most[whole[:, None] - stripe]
        chosen = value.argmax(1)[:, None]
        most[whole], first[whole] = (
            np.take_along_axis(value, chosen, 1)[:, 0],
            np.take_along_axis(stripe, chosen, 1)[:, 0],
        )
    found, rest = [], 2**count - 1
    while rest:
        found.append([one for one in range(count) if first[rest] >> one & 1])
        rest -= first[rest]
    return np.array(found)


def _kept(columns: Tensor, stripes: np.ndarray) -> np.ndarray:
    parts = torch.from_numpy(stripes).to(columns.device).split(AT_ONCE)
    return torch.cat([kept_by_stripe(columns[part.flatten()]) for part in parts]).cpu().numpy()


@cache
def _subsets(count: int, size: int, *, without_first: bool = False) -> np.ndarray:
    """Every set of `size` numbers below `count`, int64 [sets, size]."""
    return np.array(list(combinations(range(int(without_first), count), size)))
