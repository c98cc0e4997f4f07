"""What must not change: 45 commands on two checkouts of mpx, on one machine, compared.

$ python tests/golden/run.py record CHECKOUT RESULTS.json  # runs the commands with the mpx of CHECKOUT, three minutes and more
$ python tests/golden/run.py compare OLD.json NEW.json  # exit code 1 if anything differs that changed.json does not list

Two checkouts are run, since the last bits of a weight depend on the CPU. Recorded are hashes of the final
weights and of their zeros, result.json without times, machine and versions, decisions, exit codes, and the
first lines of refusals. MPX_DATA names a folder of data sets (SST-2, WikiText-2, MNIST, ...); without it,
tasks on them are left out. changed.json lists the differences that are meant: a pattern of CASE/KEY, and why.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = os.environ.get("MPX_DATA")
SHORT = (
    "trainer.max_steps=6 trainer.limit_val_batches=2 trainer.limit_test_batches=2 trainer.log_every_n_steps=2"
)
MLP = f"task=mlp_digits {SHORT}"

# name -> words of python -m mpx.train; one run each
TRAINED = {
    "main": "precision=amp sparsity=2of4 trainer.max_epochs=2",
    **{
        f"task_{name}": f"task={name} {SHORT}"
        for name in ("mlp_digits", "lstm_digits", "resnet18_digits", "resnet20_digits")
    },
    "task_bert_small_digits": f"task=bert_small_digits {SHORT} trainer.max_steps=2 data.batch_size=16",
    **{
        f"precision_{name}": f"{MLP} precision={name}"
        for name in ("tf32", "amp", "amp_bf16", "fp16_true", "bf16_true", "fp8", "o1", "o2", "o3")
    },
    **{f"lstm_{name}": f"task=lstm_digits {SHORT} precision={name}" for name in ("amp", "tf32", "bf16_true")},
    "recipe_asp": f"{MLP} sparsity=2of4",
    "recipe_one_shot": f"{MLP} sparsity=2of4 sparsity.recipe=one_shot",
    "recipe_from_start": f"{MLP} sparsity=2of4 sparsity.recipe=from_start precision=amp",
    "recipe_gradual": f"{MLP} sparsity=unstructured sparsity.recipe=gradual trainer.max_steps=24",
    "recipe_sr_ste": f"{MLP} sparsity=2of4 sparsity.recipe=sr_ste sparsity.start=0",
    "pattern_2of4_2d": f"task=resnet20_digits {SHORT} sparsity=2of4_2d",
    "permuted": f"task=resnet20_digits {SHORT} sparsity=2of4 sparsity.permute=true",
    "average": f"{MLP} trainer.ema_decay=0.9 trainer.accumulate_grad_batches=2 optimizer=adamw "
    "trainer.gradient_clip_val=1.0",
    "project": "module._target_=project.Module datamodule._target_=project.Data metric=val/acc precision=amp "
    "sparsity=2of4 trainer.max_epochs=2",
    "diverged": f"{MLP} optimizer.lr=1e30",
}
WITH_DATA = {
    "bert_small_sst2": "data.batch_size=8 trainer.max_steps=2",
    "lstm_sst2": "precision=amp_bf16",
    "lstm_wikitext2": "trainer.max_steps=2",
    "resnet20_fashion_mnist": "sparsity=2of4",
    "resnet20_mnist": "precision=amp",
    "resnet18_cifar10": "trainer.max_steps=2 data.batch_size=32",
}
REFUSED = """precision=ampp | model=resnet21 | optimizer.lrr=0.1 | +optimizer.bogus=1 | seed=x | optimizer.lr=-1
trainer.max_epochs=0 | trainer.devices=0 | trainer.accelerator=tpu | if_exists=maybe | study=../x | data=text_csv model=lstm
data=text_csv model=lstm data.path=no.csv | data=image_folder data.path=/ | data=mnist data.root=nowhere data.download=false
model=custom model._target_=no_such.Net | seed=0,1
model=timm | sparsity=2of4 sparsity.start=1.0 | model=resnet18 data=sst2 | model=mlp data=wikitext2 | data.batch_size=2000
ckpt_path=missing.ckpt | trainer.cuda_graphs=true trainer.accelerator=cpu
precision=fp8 precision.emulate=never trainer.accelerator=cpu | precision=amp precision.loss_scale.initial=0
precision=amp precision.loss_scale.growth_factor=1 | sparsity=2of4 sparsity.recipe=lottery | sparsity=2of4 sparsity.types=[Linea]
model=bert_small data=sst2 data.root=nowhere data.download=false | metric=val/acc"""
STUDIES = ("grid/results.csv", "grid/no_restart.csv", "decided/results.csv", "digits_2of4/results.csv",
"loss_scaling/results.csv",
           "batch_size/results.csv", "tuning/results.csv", "pretrained/results.csv")  # fmt: skip
VOLATILE = {"environment", "speed", "memory", "command", "folder", "host", "inputs"}


class Checkout:
    """A checkout of mpx, and an empty folder in which its commands run."""

    def __init__(self, path: Path, folder: Path):
        self.path, self.folder = path.resolve(), folder
        variables = {
            "PYTHONPATH": f"{self.path}{os.pathsep}{HERE}",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self.environment = {**os.environ, **variables}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def train(self, name: str, words: str) -> dict[str, Any]:
        ran = self.run("-m", "mpx.train", f"study={name}", "trainer.progress=off", *words.split())
        return {
            "code": ran.returncode,
            "refusal": _first_line(ran.stderr) if ran.returncode else "",
            **self.runs(name),
        }

    def runs(self, study: str) -> dict[str, Any]:
        """setting/seed -> what is kept of each run of `study`."""
        folder = self.folder / "outputs" / study
        return {
            str(path.parent.relative_to(folder)): _kept(path.parent)
            for path in sorted(folder.glob("*/*/result.json"))
        }


def _first_line(text: str) -> str:
    return next(
        (line for line in text.splitlines() if line.startswith("error")),
        text.strip().splitlines()[-1] if text.strip() else "",
    )


def _kept(run: Path) -> dict[str, Any]:
    record = json.loads((run / "result.json").read_text())
    kept = {key: _without(value) for key, value in record.items() if key not in VOLATILE}
    checkpoint = run / "checkpoints" / "last.ckpt"
    return kept | (_hashes(checkpoint) if checkpoint.exists() else {})


def _without(value: Any) -> Any:
    """`value` without times and paths."""
    if isinstance(value, dict):
        return {
            k: _without(v) for k, v in value.items() if k not in VOLATILE and not k.endswith(("_s", "_ms"))
        }
    return value


def _hashes(checkpoint: Path) -> dict[str, str]:
    import torch

    weights = torch.load(checkpoint, map_location="cpu", weights_only=False)["state_dict"]
    values, zeros = hashlib.sha256(), hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().contiguous().cpu()
        values.update(
            name.encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            if tensor.numel()
            else name.encode()
        )
        zeros.update((tensor == 0).to(torch.uint8).numpy().tobytes())
    return {"weights": values.hexdigest()[:16], "zeros": zeros.hexdigest()[:16]}


def killed_and_resumed(mpx: Checkout) -> dict[str, Any]:
    """A run killed in the middle of an epoch and continued; its weights are those of a run that was never
    killed.
    """
    words = [
        "-m",
        "mpx.train",
        "study=killed",
        "trainer.progress=off",
        "task=resnet20_digits",
        "trainer.max_epochs=2",
        "precision=amp",
    ]
    words += ["sparsity=2of4", "trainer.checkpoint_every_n_steps=4"]
    command = [sys.executable, *words]
    silent = subprocess.DEVNULL
    process = subprocess.Popen(
        command, cwd=mpx.folder, env=mpx.environment, stdout=silent, stderr=silent, start_new_session=True
    )
    while process.poll() is None and not list(
        (mpx.folder / "outputs" / "killed").glob("*/seed0/checkpoints/last.ckpt")
    ):
        time.sleep(0.02)
    was_running = process.poll() is None
    if was_running:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ran = mpx.run(*words, "if_exists=resume")
    return {"was_running": was_running, "code": ran.returncode, **mpx.runs("killed")}


def sweep_with_a_failure(mpx: Checkout) -> dict[str, Any]:
    words = f"{MLP} precision=fp32,amp optimizer.lr=0.1,1e30 study=sweep"
    ran = mpx.run("-m", "mpx.train", "-m", *words.split(), "trainer.progress=off")
    return {"code": ran.returncode, **mpx.runs("sweep")}


def decided(mpx: Checkout) -> dict[str, Any]:
    """The decisions and verdicts of all committed studies of the checkout, made in copies of their
    folders.
    """
    copy = mpx.folder / "experiments"
    shutil.copytree(mpx.path / "experiments", copy)
    results = [copy / name for name in STUDIES if (copy / name).exists()]
    ran = mpx.run(str(HERE / "decisions.py"), *map(str, results))
    return {
        "code": ran.returncode,
        "refusal": _first_line(ran.stderr),
        "studies": json.loads(ran.stdout) if ran.returncode == 0 else None,
    }


def deployed(mpx: Checkout) -> dict[str, Any]:
    """A dense and a pruned run as served, in FP32 and INT8."""
    kept: dict[str, Any] = {}
    for sparsity in ("dense", "2of4"):
        words = f"study=served task=mlp_digits trainer.max_epochs=3 sparsity={sparsity} trainer.progress=off"
        mpx.run("-m", "mpx.train", *words.split())
        run = mpx.folder / "outputs" / "served" / f"mlp-digits-fp32-{sparsity}-trainer.max_epochs=3" / "seed0"
        for fmt, backend in (("fp32", "eager"), ("int8", "onnx")):
            ran = mpx.run("-m", "mpx.deploy", f"run={run}", f"format={fmt}", f"backend={backend}")
            case = kept[f"{sparsity}/{fmt}"] = {
                "code": ran.returncode,
                "refusal": _first_line(ran.stderr) if ran.returncode else "",
            }
            if (record := run / "deploy.json").exists():
                case["metrics"] = _metrics(json.loads(record.read_text()))
    return kept


def _metrics(value: Any) -> Any:
    """The accuracies and losses anywhere in a record."""
    if isinstance(value, dict):
        kept = {
            k: _metrics(v)
            for k, v in value.items()
            if isinstance(v, (dict, list)) or "accuracy" in k or "loss" in k
        }
        return {k: v for k, v in kept.items() if v not in ({}, [], None)}
    if isinstance(value, list):
        return [kept for item in value if (kept := _metrics(item)) not in ({}, [], None)]
    return value


def program(mpx: Checkout, name: str) -> dict[str, Any]:
    ran = mpx.run(str(HERE / name))
    return {"code": ran.returncode, "printed": ran.stdout.splitlines(),
    "refusal": ran.stderr.strip()[-300:] if ran.returncode else "",
            **mpx.runs(name.removesuffix(".py"))}  # fmt: skip


def cases(mpx: Checkout) -> dict[str, Any]:
    """name -> a function without arguments that runs the case."""
    made: dict[str, Any] = {
        name: lambda name=name, words=words: mpx.train(name, words) for name, words in TRAINED.items()
    }
    if DATA is not None:
        for name, words in WITH_DATA.items():
            made[f"task_{name}"] = lambda name=name, words=words: mpx.train(
                name, f"task={name} {SHORT} data.root={DATA} {words}"
            )
    for number, words in enumerate(part.strip() for line in REFUSED.splitlines() for part in line.split("|")):
        made[f"refused_{number:02d} {words}"] = lambda number=number, words=words: mpx.train(
            f"refused_{number}", words
        )
    made["killed"] = lambda: killed_and_resumed(mpx)
    made["sweep"] = lambda: sweep_with_a_failure(mpx)
    made["deploy"] = lambda: deployed(mpx)
    for name in ("recorder.py", "transformers_trainer.py", "lightning_trainer.py"):
        made[name] = lambda name=name: program(mpx, name)
    made["decided"] = lambda: decided(mpx)
    return made


def record(checkout: Path, results: Path, only: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = {
            name: case
            for name, case in cases(Checkout(checkout, Path(folder))).items()
            if fnmatch(name, only)
        }
        with ThreadPoolExecutor(2) as pool:
            started = {name: pool.submit(case) for name, case in made.items()}
            kept = {}
            for name, case in started.items():
                kept[name] = case.result()
                print(name, "code", kept[name].get("code"), flush=True)
        text = (
            json.dumps(kept, indent=1, sort_keys=True)
            .replace(folder, "FOLDER")
            .replace(str(checkout.resolve()), "CHECKOUT")
        )
    results.write_text(text + "\n")


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {
            key: kept
            for name, part in value.items()
            for key, kept in flat(part, f"{path}/{name}" if path else name).items()
        }
    return {path: value}


def compare(old: Path, new: Path) -> int:
    meant: dict[str, str] = json.loads((HERE / "changed.json").read_text())
    before, after = (flat(json.loads(path.read_text())) for path in (old, new))
    different = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    unmeant = [key for key in different if not any(fnmatch(key, pattern) for pattern in meant)]
    for key in unmeant:
        print(f"{key}\n  old: {before.get(key)}\n  new: {after.get(key)}")
    print(
        f"{len({*before, *after})} values, {len(different)} differ, {len(unmeant)} of them are not in "
        "changed.json"
    )
    return 1 if unmeant else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"] and len(sys.argv) in (4, 5):
        record(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] if len(sys.argv) == 5 else "*")
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
    else:
        sys.exit(__doc__)
