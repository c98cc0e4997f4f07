"""apex's own tests of amp and its examples run against mpx.compat.amp, where MPX_APEX_AMP names a checkout of
apex that still has amp.

On a CPU what they put on a GPU stays where it is (on_cpu.py); on a GPU they run as they are.
"""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchvision.transforms.functional import to_pil_image

pytestmark = pytest.mark.skipif(
    "MPX_APEX_AMP" not in os.environ,
    reason="MPX_APEX_AMP names no checkout of NVIDIA's apex from before amp's removal, such as tag 25.05",
)

HERE = Path(__file__).parent
# script -> its lines that are changed: the import, and what PyTorch no longer takes, with amp or without
CHANGED = {
    "imagenet/main_amp.py": {
        "    from apex import amp, optimizers\n": "    from mpx.compat import amp\n   "
        " from apex import optimizers\n"
    },
    "dcgan/main_amp.py": {
        "    from apex import amp\n": "    from mpx.compat import amp\n",
        # torch.full makes integers of an integer since PyTorch 1.7, and the loss refuses those
        "real_label = 1\n": "real_label = 1.0\n",
    },
    "simple/distributed/distributed_data_parallel.py": {
        "from apex import amp\n": "from mpx.compat import amp\n"
    },
}


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
        ),
    ]
)
def device(request):
    return request.param


@pytest.fixture
def run(device, tmp_path):
    """run(example, arguments): what it prints."""

    def run(example, *arguments):
        checkout = Path(os.environ["MPX_APEX_AMP"])
        text = (checkout / "examples" / example).read_text()
        for old, new in CHANGED[example].items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        script = tmp_path / Path(example).name
        script.write_text(text)
        return started(
            tmp_path,
            HERE / "stand_in.py",
            checkout,
            *(["--cpu"] if device == "cpu" else []),
            script,
            *arguments,
        )

    return run


def started(folder, *command):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def numbers(pattern, text):
    return [float(found) for found in re.findall(pattern, text)]


def test_its_own_tests(device, tmp_path):
    out = started(
        tmp_path,
        HERE / "run_apex_suite.py",
        os.environ["MPX_APEX_AMP"],
        *(["--cpu"] if device == "cpu" else []),
    )
    assert re.search(r"^\d+ passed, \d+ failed \(\d+ are listed\), \d+ need amp_C$", out, re.MULTILINE), out


def test_simple(run):
    (loss,) = numbers(
        r"final loss =  tensor\(([\d.]+)", run("simple/distributed/distributed_data_parallel.py")
    )
    assert loss < 0.5  # 1.3 before the first step


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_dcgan(run, level, tmp_path):
    words = "--dataset fake --batchSize 250 --ngf 4 --ndf 4 --niter 1 --workers 0 --outf"
    arguments = [*words.split(), tmp_path]
    out = run("dcgan/main_amp.py", *arguments, "--opt_level", level)
    losses = numbers(r"Loss_[DG]: (\S+)", out)
    assert len(losses) == 8
    assert all(0.3 < loss < 3 for loss in losses), losses
    saved = torch.load(tmp_path / "netG_epoch_0.pth")
    assert all(
        value.dtype in (torch.float32, torch.int64) and torch.isfinite(value).all()
        for value in saved.values()
    )


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_imagenet(run, level, tmp_path):
    """Two epochs, the second resumed from the first one's checkpoint."""
    for folder in (tmp_path / split / name for split in ("train", "val") for name in ("cat", "dog")):
        folder.mkdir(parents=True)
        for i in range(4):
            to_pil_image(torch.rand(3, 40, 40)).save(folder / f"{i}.png")
    arguments = ["--opt-level", level, "--batch-size", 4, "--workers", 0, "--print-freq", 1, tmp_path]
    for epoch in range(2):
        out = run(
            "imagenet/main_amp.py",
            *arguments,
            "--epochs",
            epoch + 1,
            "--resume",
            "checkpoint.pth.tar" if epoch else "",
        )
        losses = numbers(rf"Epoch: \[{epoch}\].*Loss (\S+)", out)
        assert len(losses) == 2
        assert all(math.isfinite(loss) for loss in losses)
        assert f"(epoch {epoch})" in out or not epoch
        saved = torch.load(tmp_path / "checkpoint.pth.tar", map_location="cpu")
        assert saved["epoch"] == epoch + 1
        assert all(value.dtype in (torch.float32, torch.int64) for value in saved["state_dict"].values())
