"""A GPU that the driver shows and CUDA cannot use, as after a wrong CUDA_VISIBLE_DEVICES under NVIDIA MPS."""

import pytest
import torch

from mpx.doctor.tables import machine
from mpx.errors import UserError
from mpx.measure.devices import chosen, usable_gpus


@pytest.fixture
def broken(monkeypatch):
    """broken(count): CUDA does not start; NVML shows `count` GPUs."""

    def fail():
        raise RuntimeError("CUDA unknown error - this may be due to\nan incorrectly set up environment.")

    def breaks(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "init", fail)

    return breaks


SAID = "CUDA unknown error - this may be due to an incorrectly set up environment"


@pytest.mark.parametrize("asked", ["auto", "gpu"])
@pytest.mark.parametrize(
    ("count", "them"), [(1, "1 GPU, but CUDA cannot use it"), (2, "2 GPUs, but CUDA cannot use them")]
)
def test_it_is_an_error_unless_the_cpu_is_asked_for(broken, asked, count, them):
    broken(count)
    with pytest.raises(UserError) as refused:
        usable_gpus("key", asked)
    mend = "Mend that (python -m mpx.doctor checks it), or do without by key=cpu."
    assert str(refused.value) == f"key={asked}: the driver shows {them}: {SAID}. {mend}"
    assert usable_gpus("key", "cpu") == 0


def test_without_any_the_cpu_is_taken(broken):
    broken(0)
    assert usable_gpus("key", "auto") == 0
    assert chosen("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="no CUDA device is visible here"):
        usable_gpus("key", "gpu")


def test_the_doctor_says_it(broken):
    broken(1)
    assert dict(machine().rows)["GPU"] == f"– (the driver shows 1 GPU, but CUDA cannot use it: {SAID})"
