"""Train 20 short settings on the CPU and keep what they end in: hashes of weights and masks, and result.json without its times.

$ python tests/frozen/run.py BEFORE.json                  # on the commit before a change
$ python tests/frozen/run.py AFTER.json --against BEFORE.json   # after it; exit code 1 and the differences where behaviour has changed

Hashes hold for one machine and one version of PyTorch, so none is committed.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

SHORT = [
    "trainer.max_epochs=2", "trainer.limit_train_batches=6", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1",
    "trainer.accelerator=cpu", "trainer.progress=off", "data.batch_size=16", "data.eval_batch_size=64",
]  # fmt: skip
SETTINGS = {
    "fp32": "precision=fp32",
    "tf32-step-schedule": "precision=tf32 schedule=step",
    "amp-2of4-asp": "precision=amp sparsity=2of4",
    "bf16-emulated": "precision=amp_bf16 precision.emulate=always label_smoothing=0.1",
    "fp16_true": "precision=fp16_true model=mlp",
    "bf16_true": "precision=bf16_true precision.emulate=always model=lstm",
    "fp8-bert": "precision=fp8 model=bert_small",
    "o1-adamw": "precision=o1 optimizer=adamw",
    "o2-2of4": "precision=o2 sparsity=2of4",
    "o3-mlp": "precision=o3 model=mlp optimizer.lr=0.001",
    "lstm-sr_ste": "model=lstm precision=amp sparsity=2of4 sparsity.recipe=sr_ste sparsity.start=0",
    "bert-gradual": "model=bert_small precision=fp32 sparsity=nofm sparsity.recipe=gradual sparsity.start=0.25",
    "mlp-one_shot": "model=mlp precision=fp32 sparsity=unstructured sparsity.recipe=one_shot sparsity.sensitivity=true",
    "mlp-from_start-2d": "model=mlp precision=amp sparsity=2of4_2d sparsity.recipe=from_start",
    "permuted": "precision=fp32 sparsity=2of4 sparsity.permute=true",
    "ema-pruned": "precision=amp sparsity=2of4 trainer.ema_decay=0.9",
    "accumulate-clip": "precision=amp trainer.accumulate_grad_batches=3 trainer.gradient_clip_val=0.5",
    "numerics-audit": "precision=amp numerics.every=2 numerics.histogram=true audit=true sparsity=2of4 sparsity.coverage=true",
    "timm": "model=timm model.name=resnet10t data.image_size=32 optimizer.lr=0.05 precision=fp32 speed=plain",
    "synthetic-workers": "model=resnet18 data=synthetic data.loader=workers data.workers=1 optimizer.lr=0.01 precision=fp32",
    "resumed": "precision=amp sparsity=2of4 trainer.ema_decay=0.9",  # in two parts: see run_setting
    "diverged": "precision=amp optimizer.lr=1e30 precision.loss_scale.max_skips=3",
}
TIMED = ("speed", "memory", "environment", "profile")  # parts of a record that differ from run to run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        found = dict(zip(given.only, pool.map(lambda name: run_setting(name, Path(folder)), given.only), strict=True))
    given.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if given.against is None:
        return 0
    before = {name: value for name, value in json.loads(given.against.read_text()).items() if name in found}
    differences = [line for name in before for line in compare(name, before[name], found[name])]
    print("\n".join(differences) or f"{len(before)} settings equal")
    return 1 if differences else 0


def run_setting(name: str, folder: Path) -> dict[str, Any]:
    words = [*SHORT, *SETTINGS[name].split(), f"output_dir={folder}/{name}"]
    if name == "resumed":
        train([*words, "trainer.max_epochs=4", "trainer.max_steps=15", "trainer.checkpoint_every_n_steps=3", "study=first"])
        (last,) = folder.glob(f"{name}/first/*/seed0/checkpoints/last.ckpt")
        shutil.copy(last, folder / "last.ckpt")  # a name without =, which Hydra would take for a setting
        words += ["trainer.max_epochs=4", f"ckpt_path={folder}/last.ckpt"]
    code = train([*words, "study=it"])
    (run,) = folder.glob(f"{name}/it/*/seed0")
    record = json.loads((run / "result.json").read_text())
    record["speed"] = {"chosen": record["speed"].get("chosen"), "measured_steps": record["speed"]["measured_steps"]}
    kept = {key: value for key, value in record.items() if key not in TIMED[1:]}
    kept["config"] = kept["config"] | {"output_dir": "", "ckpt_path": ""}
    if kept["sparsity"].get("permutation"):
        kept["sparsity"]["permutation"]["seconds"] = None
    return {"code": code, "folder": run.parent.name, "record": kept, **hashes(run / "checkpoints" / "last.ckpt")}


def train(words: list[str]) -> int:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", "mpx.train", *words], env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        print(f"{' '.join(words)}\n{done.stdout}{done.stderr}", file=sys.stderr)
    return done.returncode


def hashes(checkpoint: Path) -> dict[str, str | None]:
    if not checkpoint.is_file():
        return {"weights": None, "masks": None, "optimizer": None}
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    masks = saved["callbacks"].get("Pruning", {}).get("masks", {})
    return {"weights": digest(saved["state_dict"]), "masks": digest(masks), "optimizer": digest(saved["optimizer_states"])}


def digest(value: Any) -> str:
    found = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            found.update(str((item.dtype, tuple(item.shape))).encode() + item.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(item, dict):
            for key in sorted(item, key=str):
                found.update(str(key).encode())
                add(item[key])
        elif isinstance(item, (list, tuple)):
            for part in item:
                add(part)
        else:
            found.update(repr(item).encode())

    add(value)
    return found.hexdigest()[:16]


def compare(path: str, before: Any, after: Any) -> list[str]:
    """The lines that say where two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [line for key in sorted(before.keys() | after.keys()) for line in compare(f"{path}.{key}", before.get(key), after.get(key))]
    return [] if before == after else [f"{path}: {before!r} before, {after!r} after"]


if __name__ == "__main__":
    sys.exit(main())
