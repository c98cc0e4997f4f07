"""The 36 networks of apex's permutation tests: mpx permutes what apex permutes, or more, and they compute
what they computed.

Where the variable MPX_APEX names a checkout of apex.
"""

import os

import pytest
import torch
from helpers_for_asp import APEX_NETWORKS

from mpx.sparsity.permutation import permute_model

pytestmark = pytest.mark.skipif(
    "MPX_APEX" not in os.environ, reason="MPX_APEX names no checkout of NVIDIA's apex"
)

# it divides by a mean over neighbouring channels: their order counts, by less than apex's tolerance
FEWER = ["LocalResponseNorm"]
WORK = 2e8


@pytest.mark.parametrize("number", range(APEX_NETWORKS))
def test_apexs_networks(networks, number):
    name, model = networks[number]
    x = torch.rand(model.input_shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
    with torch.no_grad():
        model.double()(x)  # makes the parameters of lazy layers
        expected = [model.train(mode)(x) for mode in (True, False)]
        report = permute_model(model, x, work=WORK)
        found = [model.train(mode)(x) for mode in (True, False)]
    for one, wanted in zip(found, expected, strict=True):
        assert (one - wanted).abs().max() <= 1e-13 * wanted.abs().max(), name
    inputs, outputs = (
        {axis.name for axis in report.permutation.indices if axis.dim == dim} for dim in (1, 0)
    )
    if name in FEWER:
        assert not report.permutation.indices
        assert all("is not known to keep channels apart" in layer["reason"] for layer in report.layers[1:])
    else:
        assert len(inputs) >= model.expected_C_params, name
        assert len(outputs) >= model.expected_K_params, name


def test_the_order_of_channels_counts_in_local_response_norm():
    """Why mpx permutes fewer than apex there: at apex's sizes and alpha=1e-4 the outputs change by 1e-4 of
    their size and less.
    """
    norm, x = torch.nn.LocalResponseNorm(16), torch.rand(4, 128, 7, 7, dtype=torch.float64)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    change = (norm(x)[:, order] - norm(x[:, order])).abs().max()
    assert 1e-6 < change < 1e-4
