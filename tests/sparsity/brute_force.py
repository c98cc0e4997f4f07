"""Masks by looking at one group, tile or layer at a time, in Python's own numbers. Shares no code with
mpx.
"""

from fractions import Fraction
from itertools import combinations, product
from math import isfinite

import torch

BEYOND = Fraction(2**1000)  # what an infinite or NaN weight counts: any sum with it drowns the finite ones


def _numbers(weight):
    values = {index: weight[index].abs().item() for index in product(*(range(size) for size in weight.shape))}
    return {index: Fraction(value) if isfinite(value) else BEYOND for index, value in values.items()}


def _sum(values):
    total = sum(values)
    return total if total < BEYOND else total // BEYOND * BEYOND


def _mask(weight, kept):
    mask = torch.zeros(weight.shape, dtype=torch.bool)
    for index in kept:
        mask[index] = True
    return mask


def n_of_m(weight, n, m):
    """Per output and kernel position, per m inputs: the n largest, the earlier among equals."""
    magnitude, kept = _numbers(weight), []
    out, inputs, *kernel = weight.shape
    for row, position, start in product(range(out), product(*map(range, kernel)), range(0, inputs, m)):
        group = [(row, column, *position) for column in range(start, min(start + m, inputs))]
        kept += sorted(group, key=lambda index: (-magnitude[index], index))[:n]
    return _mask(weight, kept)


def tiles_best(weight):
    """Per 4×4 tile, filled up with zeros: the choice of two columns per row, two rows per column, with the
    largest sum.
    """
    pairs = list(combinations(range(4), 2))
    choices = [
        rows
        for rows in product(pairs, repeat=4)
        if all(sum(c in pair for pair in rows) == 2 for c in range(4))
    ]
    assert len(choices) == 90
    return _tiles(
        weight,
        lambda tile: max(
            choices, key=lambda rows: _sum(tile[r][c] for r, pair in enumerate(rows) for c in pair)
        ),
    )


def tiles_greedy(weight):
    """Per tile, from the largest down, whatever still finds room."""

    def choose(tile):
        rows = [[], [], [], []]
        for r, c in sorted(product(range(4), repeat=2), key=lambda place: (-tile[place[0]][place[1]], place)):
            if len(rows[r]) < 2 and sum(c in row for row in rows) < 2:
                rows[r].append(c)
        return rows

    return _tiles(weight, choose)


def _tiles(weight, choose):
    magnitude, kept = _numbers(weight), []
    out, inputs, *kernel = weight.shape
    for position, top, left in product(product(*map(range, kernel)), range(0, out, 4), range(0, inputs, 4)):
        tile = [
            [magnitude.get((top + r, left + c, *position), Fraction(0)) for c in range(4)] for r in range(4)
        ]
        for r, columns in enumerate(choose(tile)):
            kept += [(top + r, left + c, *position) for c in columns if top + r < out and left + c < inputs]
    return _mask(weight, kept)


def unstructured(weight, density):
    magnitude = _numbers(weight)
    return _mask(
        weight,
        sorted(magnitude, key=lambda index: (-magnitude[index], index))[: round(density * weight.numel())],
    )
