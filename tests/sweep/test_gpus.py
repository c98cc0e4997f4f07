"""Which GPUs the jobs of a sweep may use. That jobs at once have different ones: test_sweep.py."""

import pytest
from omegaconf import OmegaConf

from mpx.sweep.jobs import one_device
from mpx.system.machine import visible_gpus


@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("2", ["2"]),
        ("2, 0", ["2", "0"]),
        ("GPU-8932f937,GPU-1f", ["GPU-8932f937", "GPU-1f"]),
        ("", []),
        ("-1", []),
        ("1,-1,0", ["1"]),
    ],
)
def test_what_the_user_made_visible_is_respected(set_by_user, expected):
    environment = {} if set_by_user is None else {"CUDA_VISIBLE_DEVICES": set_by_user}
    assert visible_gpus(environment, count=lambda: 3) == expected


@pytest.mark.parametrize(
    ("accelerator", "devices", "expected"),
    [("auto", 1, True), ("gpu", "auto", True), ("cpu", 1, False), ("auto", 2, False), ("auto", [1], False)],
)
def test_only_a_job_that_asks_for_one_device_is_given_one(accelerator, devices, expected):
    assert one_device(OmegaConf.create({"accelerator": accelerator, "devices": devices})) is expected
