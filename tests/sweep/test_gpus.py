"""GPUs are shared out between processes and threads; the processes and their locks are real, the number of GPUs is made up.

What the jobs of a sweep see of them: test_sweep.py.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from mpx.sweep import gpus
from mpx.sweep.child import one_device

HOLD = f"""
import runpy, sys
from pathlib import Path
claimed = runpy.run_path({gpus.__file__!r})["claimed"]  # without the other files of mpx.sweep, which import Hydra
with claimed(Path(sys.argv[1]), int(sys.argv[2]), ["4", "GPU-1f", "7"]) as gpu:
    print(gpu, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def jobs(tmp_path):
    """start(n) -> n processes that have asked at the same time, each with `gpu`, what it was given; they hold it until they are ended."""
    running = []

    def start(number):
        new = [
            subprocess.Popen(
                [sys.executable, "-c", HOLD, str(tmp_path / "gpus"), str(len(running) + index)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for index in range(number)
        ]  # fmt: skip
        for process in new:
            process.gpu = process.stdout.readline().strip()
        running.extend(new)
        return new

    yield start
    for process in running:
        process.kill()
        process.communicate()


def end(process):
    process.communicate("\n", timeout=30)
    assert process.returncode == 0


def test_jobs_that_run_at_the_same_time_spread_over_all_gpus(jobs):
    given = [job.gpu for job in jobs(6)]
    assert sorted(given) == ["4", "4", "7", "7", "GPU-1f", "GPU-1f"]


def test_jobs_that_threads_of_one_process_wait_for_do_so_too(tmp_path):
    all_have_one = Barrier(6, timeout=30)

    def hold(job):
        with gpus.claimed(tmp_path / "gpus", job, ["4", "GPU-1f", "7"]) as gpu:
            all_have_one.wait()
            return gpu

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(hold, range(6))) == ["4", "4", "7", "7", "GPU-1f", "GPU-1f"]


def test_a_job_that_ends_frees_its_gpu(jobs):
    first = jobs(3)
    end(next(job for job in first if job.gpu == "7"))
    assert [job.gpu for job in jobs(1)] == ["7"]


def test_a_job_that_is_killed_frees_its_gpu(jobs):
    first = jobs(5)  # two of the three GPUs have two jobs
    (alone,) = (job for job in first if [other.gpu for other in first].count(job.gpu) == 1)
    for killed in (job for job in first if job.gpu == "GPU-1f"):
        killed.kill()
        killed.wait()
    assert alone.gpu != "GPU-1f"  # the first two GPUs were filled first
    assert [job.gpu for job in jobs(1)] == ["GPU-1f"]


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
def test_what_the_user_made_visible_is_respected(monkeypatch, set_by_user, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if set_by_user is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", set_by_user)
    assert gpus.visible_gpus(count=lambda: 3) == expected


def test_what_hydra_makes_visible_to_a_job_is_respected():
    """By hydra.job.env_set; the process that waits for several jobs does not have it itself."""
    assert gpus.visible_gpus({"CUDA_VISIBLE_DEVICES": "5,6"}) == ["5", "6"]


@pytest.mark.slow
def test_gpus_are_counted_without_cuda():
    """As many as torch counts where none is hidden, found without importing it."""
    program = "import sys; from mpx.sweep.gpus import installed; n = installed(); assert 'torch' not in sys.modules; import torch; "
    program += "assert n == torch.cuda.device_count(), (n, torch.cuda.device_count())"
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


@pytest.mark.parametrize(
    ("accelerator", "devices", "expected"),
    [("auto", 1, True), ("gpu", "auto", True), ("cpu", 1, False), ("auto", 2, False), ("auto", [1], False)],
)
def test_only_a_job_that_asks_for_one_device_is_given_one(accelerator, devices, expected):
    from omegaconf import OmegaConf

    assert one_device(OmegaConf.create({"accelerator": accelerator, "devices": devices})) is expected
