"""Emulated FP16 skips the steps that FP16 skips: random networks against PyTorch's own FP16 on a CPU.
tests/gpu compares with CUDA.
"""

import pytest
from random_networks import ON_A_CPU, drawn, kind_of
from skipped_steps import compare

NETWORKS = 60  # of 500, 41 CPU seconds, none differed


@pytest.mark.parametrize("kind", ON_A_CPU)
def test_the_same_steps_are_skipped(kind):
    """Kinds of networks whose autocast and whose sums are the same on a CPU as on a GPU; random_networks.py
    says which are not.
    """
    seeds = [seed for seed in range(NETWORKS) if kind_of(seed, everywhere=True) == kind]
    compared = [compare(drawn(seed, everywhere=True)) for seed in seeds]
    assert not [str(one) for one in compared if not one.explained]
    assert sum(not one.same for one in compared) <= 1
    steps = [skipped for one in compared for skipped in one.native]
    assert 0.3 < sum(steps) / len(steps) < 0.8  # else nothing was compared
