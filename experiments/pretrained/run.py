"""What does 2:4 cost a pretrained BERT? Fine-tunes one from a folder on SST-2: dense, and pruned to 2:4
first.

$ python experiments/pretrained/run.py MODEL DATA           # 1,024 phrases, three seeds; for a CPU
$ python experiments/pretrained/run.py MODEL DATA --whole  # all 67,349, three epochs, five seeds, FP32 and BF16; for a GPU
$ python experiments/pretrained/run.py MODEL DATA precision=amp_bf16 hydra/launcher=joblib hydra.launcher.n_jobs=2  # words of mpx.train

MODEL: a folder that transformers loads, with its tokenizer; README.md says where ours is from. DATA: the
folder that holds SST-2. It writes results.csv and the results in README.md. The same command continues what
was cut off.
"""

import argparse
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from card import update_card
from collecting import Arguments, finished

HERE = Path(__file__).parent
PRUNED = ["sparsity=2of4", 'sparsity.skip=["*pooler*"]']
FIRST = ["sparsity=dense"], [*PRUNED, "sparsity.recipe=from_start"]
# asp lets the learning rate rise again when it prunes half way; a dense setting does so, too.
FURTHER = (
    PRUNED,
    ["sparsity=dense", "schedule.restart=0.5"],
    [*PRUNED, "sparsity.recipe=sr_ste", "sparsity.start=0"],
)
# The mean of all tokens is classified, as these weights were trained for; mpx's own BERT takes it, and a CUDA
# graph.
TUNE = [
    "model=bert_small",
    "data=sst2",
    "model.pool=mean",
    "label_smoothing=0",
    "optimizer.weight_decay=0.01",
    "trainer.progress=lines",
]
# 64 steps and 1,024 of the 1,821 test sentences: a minute of one CPU core for each run.
SMALL = [
    "study=pretrained",
    "seed=0,1,2",
    "optimizer.lr=1e-4",
    "data.batch_size=16",
    "data.seq_len=24",
    "trainer.max_epochs=1",
]
SMALL += ["trainer.limit_train_batches=64", "trainer.limit_val_batches=1", "trainer.limit_test_batches=4"]
# The rate is the highest of the paper's (Devlin et al. 2018, A.3).
WHOLE = [
    "study=pretrained_whole",
    "seed=0,1,2,3,4",
    "precision=fp32,amp_bf16",
    "optimizer.lr=5e-5",
    "data.batch_size=32",
]
WHOLE += ["trainer.max_epochs=3"]


def options() -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("more", nargs="*", metavar="KEY=VALUE", help="further words of mpx.train")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of README.md, for results.csv")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="folder of all studies")
    return parser.parse_intermixed_args()


def main() -> None:
    given = options()
    model = given.model.resolve()
    size, settings = (WHOLE, (*FIRST, *FURTHER)) if given.whole else (SMALL, FIRST)
    places = [f"data.root={given.data.resolve()}", f"output_dir={given.outputs.resolve()}"]
    for setting in settings:
        mpx(
            "train",
            ["-m", *TUNE, f"model.pretrained={model.name}", *size, *setting, *places, *given.more],
            model.parent,
        )
    values = dict(word.split("=", 1) for word in [*size, *given.more]).values()
    study = given.outputs / size[0].partition("=")[2]
    finished(study, len(settings) * prod(len(value.split(",")) for value in values))
    if code := mpx("compare", [size[0], places[1]], model.parent):
        sys.exit(code)
    shutil.copy(study / "results.csv", given.out)
    update_card(given.out)


def mpx(command: str, words: list[str], folder: Path) -> int:
    """In the folder of the model, so that no record names a path of this machine."""
    return subprocess.run([sys.executable, "-m", f"mpx.{command}", *words], cwd=folder).returncode


if __name__ == "__main__":
    main()
