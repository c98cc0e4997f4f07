"""A quick look at training speed: mpx plain, with CUDA graphs, compiled, and both, beside a loop tuned by hand, on synthetic data.

$ python experiments/speed/quick.py                                          # all, most telling first, until the time is used up
$ python experiments/speed/quick.py --models resnet18,lstm --ways plain,graph,hand --precisions amp --seconds 300
$ python experiments/speed/quick.py --tiny                                   # a trial on any machine, means nothing

Prints a line per measurement and writes quick.csv into $OUT, or here. mpx runs through its front door, in this process.
"""

import argparse
import csv
import gc
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
IMAGES = {"resnet18": ([3, 32, 32], 10, 512, 128), "resnet50": ([3, 224, 224], 1000, 256, 24)}  # shape, classes, batch, batches an epoch
TEXTS = {"bert_small": ([128], 2, 256, 96), "lstm": ([128], 2, 256, 96)}
SETUPS = IMAGES | TEXTS
SIZES = {"hidden": 512, "layers": 4, "vocabulary": 30522}
TINY = {
    "resnet18": ([3, 8, 8], 4, 4, 8), "resnet50": ([3, 32, 32], 4, 4, 8), "bert_small": ([8], 2, 4, 8), "lstm": ([8], 2, 4, 8),
}  # fmt: skip
TINY_SIZES = {"hidden": 64, "layers": 1, "vocabulary": 50}
WAYS = {
    "plain": ["speed=plain"],
    "graph": ["trainer.cuda_graphs=true", "trainer.compile=off"],
    "compile": ["trainer.cuda_graphs=false", "trainer.compile=default"],
    "both": ["trainer.cuda_graphs=true", "trainer.compile=default"],
    "searched": ["trainer.cuda_graphs=true", "trainer.compile=default", "trainer.benchmark=true"],
    "autotune": ["trainer.cuda_graphs=true", "trainer.compile=max-autotune"],
    "overhead": ["trainer.compile=reduce-overhead"],
}
STEPS = {"resnet50": 60}  # measured; else 200
COLUMNS = ("model", "precision", "way", "samples_per_s", "step_ms_p50", "step_ms_p95", "wall_s", "peak_gib", "note", "device", "torch")


def plan(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(model, precision, way), the cheap and telling ones first."""
    order = ["plain", "graph", "hand", "both", "searched", "autotune", "compile", "overhead", "loop"]
    ways = [way for way in order if way in args.ways]
    return [(model, precision, way) for way in ways for precision in args.precisions for model in args.models]


def measure_mpx(model: str, precision: str, way: str, tiny: bool, steps: int) -> dict:
    import mpx.train

    (shape, classes, batch, batches), sizes = (TINY if tiny else SETUPS)[model], TINY_SIZES if tiny else SIZES
    choice = [f"model={model}", f"precision={precision}", "data=synthetic", f"data.shape={shape}".replace(" ", ""), *WAYS.get(way, [])]
    choice += [f"data.classes={classes}", f"data.batch_size={batch}", f"data.samples={batch * batches}"]
    if len(shape) == 1:
        choice += ["data.kind=text", f"model.hidden_size={sizes['hidden']}", f"data.vocab_size={sizes['vocabulary']}", "optimizer.lr=1e-4"]
        choice += ["model.num_layers=2", "optimizer=adamw"] if model == "lstm" else [f"model.num_layers={sizes['layers']}"]
        choice += ["model.num_heads=1"] if tiny and model == "bert_small" else []
    few = ["trainer.max_epochs=1000", f"trainer.max_steps={steps + 15}", "trainer.warmup_steps=15", "trainer.progress=off"]
    few += ["trainer.check_val_every_n_epoch=1000", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        sys.argv = ["mpx.train", *choice, *few, "trainer.log_every_n_steps=50", f"output_dir={folder}"]
        with suppress(SystemExit):
            mpx.train.main()
        files = list(Path(folder).glob("*/*/*/result.json"))
        record = json.loads(files[0].read_text()) if files else {"error": "refused", "speed": {}, "memory": {}}
    speed, memory = record["speed"], record["memory"]
    note = record.get("error") or json.dumps(speed.get("chosen"))
    found = {key: speed.get(key if key != "samples_per_s" else "train_samples_per_s") for key in COLUMNS[3:6]}
    return found | {"note": note, "peak_gib": memory.get("peak_allocated_gib")}


def measure_hand(model: str, precision: str, way: str, tiny: bool, steps: int) -> dict:
    import hand

    (shape, classes, batch, _), sizes = (TINY if tiny else SETUPS)[model], TINY_SIZES if tiny else SIZES
    rate = hand.measure(model, precision, shape, classes, batch, sizes, steps, tuned=way == "hand")
    return {"samples_per_s": rate, "step_ms_p50": 1e3 * batch / rate, "note": str(hand.COMPILE[model]) if way == "hand" else "eager"}


def tidy() -> None:
    import torch

    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {"models": SETUPS, "precisions": ("amp", "amp_bf16", "fp32"), "ways": ("plain", "graph", "hand", "both")}
    for name, default in names.items():
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(default))
    parser.add_argument("--seconds", type=float, default=340)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def main() -> None:
    args, began = options(), time.perf_counter()
    import torch

    about = {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU", "torch": torch.__version__}
    path = Path(os.environ.get("OUT", tempfile.gettempdir() if args.tiny else HERE)) / "quick.csv"  # a trial's figures are not kept
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for model, precision, way in plan(args):
            if time.perf_counter() - began > args.seconds:
                print(f"out of time before {model} {precision} {way}", flush=True)
                break
            steps, start = 8 if args.tiny else STEPS.get(model, 200), time.perf_counter()
            try:
                row = (measure_hand if way in ("hand", "loop") else measure_mpx)(model, precision, way, args.tiny, steps)
            except Exception as error:  # the others are still wanted
                row = {"note": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
            row |= {"model": model, "precision": precision, "way": way, "wall_s": round(time.perf_counter() - start, 1)} | about
            writer.writerow(row)
            file.flush()
            rate = row.get("samples_per_s")
            shown = f"{rate:10,.0f} samples/s" if rate else "         –"
            print(f"== {model:11}{precision:9}{way:8}{shown}  {row['wall_s']:5.1f} s  {row['note']}", flush=True)
            tidy()


if __name__ == "__main__":
    main()
