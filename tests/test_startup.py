"""A mistake, --help and --cfg job come back before anything heavy is imported; experiments/startup measures
how fast.
"""

import subprocess
import sys

HEAVY = ("torch", "pytorch_lightning", "transformers", "torchvision", "numpy", "sklearn", "rich")
COMMANDS = (
    ["--help"],
    ["--cfg", "job"],
    ["optimizer.lr=-1"],
    ["model=resnet"],
    ["model=resnet18", "data=sst2"],
    ["model=custom", "model._target_=no_such.Net"],
    ["data=mnist", "data.root=nowhere", "data.download=false"],
    ["model=resnet34"],
    ["--help", "sparsity"],
)
PROGRAM = f"""
import runpy, sys
for words in {COMMANDS}:
    sys.argv[1:] = words
    try:
        runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)
    except SystemExit:
        print(words, "imports", [name for name in {HEAVY} if name in sys.modules])
"""


def test_nothing_heavy_is_imported(tmp_path):
    """One process for all: what one of them imports, it and all after it show."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    for words in COMMANDS:
        assert f"{words} imports []" in done.stdout, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
