"""The shares of the search: together what they may cost, spread so that no other spread gains much more."""

import numpy as np
import pytest

from mpx.sparsity.permutation.budget import WORK, Share, _step, shares

VIT = [(36864, 768), *[(768, 3072)] * 12, *[(768, 64)] * 144]  # rows and columns of vit_b_16's groups: residual, feed-forward, heads
RESNEXT = [(8192, 2048), (3072, 1024), *[(2048, 1024)] * 3, *[(1024, 512)] * 6, *[(144, 16)] * 300, *[(288, 32)] * 100]
LANGUAGE_MODEL = [(300_000, 2048), *[(2048, 8192)] * 16, *[(2048, 64)] * 512]


def spent(shapes, found):
    return sum(share.steps * _step(share.rows, columns) for share, (_, columns) in zip(found, shapes, strict=True))


@pytest.mark.parametrize("shapes", [VIT, RESNEXT, LANGUAGE_MODEL], ids=["vit", "resnext", "language model"])
@pytest.mark.parametrize("work", [WORK / 3, WORK, 10 * WORK])
def test_the_work_is_spent_and_no_more(shapes, work):
    assert 0.9 * work < spent(shapes, shares(shapes, work)) <= 1.01 * work


def gap(shapes, steps):
    """What is still to be gained by the rule of budget.py, for weights of one mean magnitude."""
    return sum(rows**0.5 * columns * one**-0.55 for (rows, columns), one in zip(shapes, steps, strict=True))


@pytest.mark.parametrize("shapes", [VIT, RESNEXT], ids=["vit", "resnext"])
def test_moving_work_between_groups_gains_little(shapes):
    work = 10 * WORK
    searched = [shape for shape in shapes if shape[1] > 16]
    ours = [share.steps for share, shape in zip(shares(shapes, work), shapes, strict=True) if shape[1] > 16]
    cost = np.array([_step(*shape) for shape in searched])
    gain = np.array([rows**0.5 * columns for rows, columns in searched])
    left, prices = work - spent(shapes, shares(shapes, work)) + (np.array(ours) * cost).sum(), np.logspace(-20, 20, 4000)
    best = min(
        gap(searched, steps) for price in prices if ((steps := ((gain / cost / price) ** (1 / 1.55)).clip(1, 1000)) * cost).sum() <= left
    )
    assert gap(searched, ours) < 1.05 * best


def test_small_models_get_the_most_steps_and_few_columns_all_orders():
    assert shares([(144, 16), (288, 32), (576, 64)], WORK) == [Share(1, 144), Share(1000, 288), Share(1000, 576)]


def test_every_group_gets_something():
    assert shares([(50_000, 4096), (10, 20), (64, 8)], 0) == [Share(4, 16), Share(4, 10), Share(1, 64)]
