"""On a CUDA device: every format that it has is measured, in that format, below the vendor's peak."""

import json

import pytest
import torch

from mpx.bench import run
from mpx.measure.matmul import NAMES, float32_as, missing, product, relative_error
from mpx.measure.timing import elapsed, median_time

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")


def test_every_format_that_the_gpu_has_is_measured(tmp_path, capsys):
    run("formats", "gpu", 4096, str(tmp_path))
    rows = {row["format"]: row for row in json.loads((tmp_path / "bench" / "formats.json").read_text())["rows"]}
    assert list(rows) == list(NAMES)
    for name, row in rows.items():
        assert (row["tflops_per_s"] is None) == (missing(name, GPU) is not None), row["tflops_per_s_reason"]
        if row["share_of_peak"] is not None:
            assert 0.05 < row["share_of_peak"] < 1.05, name
    assert torch.cuda.get_device_name() in capsys.readouterr().out


def test_fp32_is_ieee_and_tf32_is_not():
    errors = {}
    for fmt in ("fp32", "tf32"):
        if missing(fmt, GPU) is None:
            with float32_as(fmt):
                errors[fmt] = relative_error(product(fmt, 1024, GPU))
    assert errors["fp32"] < 1e-5
    assert errors.get("tf32", 1) > 10 * errors["fp32"]


@pytest.mark.parametrize("fmt", NAMES)
def test_operands_are_in_the_format(fmt):
    if (reason := missing(fmt, GPU)) is not None:
        pytest.skip(reason)
    made = product(fmt, 256, GPU)
    kept = {"int8": torch.int8, "tf32": torch.float32, "fp32": torch.float32}
    assert made.a.is_cuda
    assert made.a.dtype == kept.get(fmt, made.a.dtype)
    assert relative_error(made) <= (0 if fmt == "int8" else 0.01)


def test_timing_is_the_devices_own():
    """A sleep of a known number of clock cycles on the device, launched at once."""
    cycles = 20_000_000
    call = lambda: torch.cuda._sleep(cycles)  # noqa: E731
    elapsed(call, GPU, 5)
    timing = median_time(call, GPU, budget_s=0.2)
    assert 20e6 / 4e9 < timing.seconds < 20e6 / 0.2e9
    assert elapsed(call, GPU, 4) == pytest.approx(4 * timing.seconds, rel=0.2)
