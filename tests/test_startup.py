"""A mistake, --help, --version and --cfg job come back before anything heavy is imported; experiments/startup measures
how fast.
"""

import re
import subprocess
import sys

import mpx

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
CALLS = [
    *(("mpx.train", words) for words in COMMANDS),
    *((f"mpx.{name}", ["--version"]) for name in ("train", "compare", "bench", "deploy", "doctor")),
]
PROGRAM = f"""
import runpy, sys
for module, words in {CALLS}:
    sys.argv[1:] = words
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
    print(module, words, "imports", [name for name in {HEAVY} if name in sys.modules])
"""


def test_nothing_heavy_is_imported(tmp_path):
    """One process for all: what one of them imports, it and all after it show."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    for module, words in CALLS:
        assert f"{module} {words} imports []" in done.stdout, done.stdout + done.stderr
    version = rf"^mpx {re.escape(mpx.__version__)}\+[0-9a-f]{{8}}( \(git [0-9a-f]{{10}}(, with changes)?\))?$"
    assert len(re.findall(version, done.stdout, re.MULTILINE)) == 5
    assert list(tmp_path.iterdir()) == []
