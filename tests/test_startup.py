"""A mistake, --help and --cfg job come back before anything heavy is imported; experiments/startup measures how fast."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "pytorch_lightning", "transformers", "torchvision", "numpy", "sklearn", "rich")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--cfg", "job"],
        ["optimizer.lr=-1"],
        ["model=resnet"],
        ["model=resnet18", "data=sst2"],
        ["model=custom", "model._target_=no_such.Net"],
        ["data=mnist", "data.root=nowhere/mnist"],
    ],
)
def test_nothing_heavy_is_imported(tmp_path, arguments):
    program = (
        "import runpy, sys, atexit\n"
        f"atexit.register(lambda: print('HEAVY', [name for name in {HEAVY} if name in sys.modules]))\n"
        f"sys.argv[1:] = {arguments}\n"
        "runpy.run_module('mpx.train', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "HEAVY []" in done.stdout, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
