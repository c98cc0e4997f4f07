"""How fast do SST-2's texts train, beside transformers' Trainer and a loop by hand, each with little padding?
And do texts of similar length in one batch cost accuracy?

$ python experiments/real_data/run.py  # 4 epochs of each (on a GPU: some minutes)
$ python experiments/real_data/run.py --steps 25 --seeds 0    # a part of an epoch, for a CPU
$ python experiments/real_data/run.py --card    # README.md from the committed results.csv and lengths.csv

Needs MPX_DATA, the folder of the data sets. Writes results.csv into $OUT, or here. lengths.csv is the
results.csv of a study (the card has its command).
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "speed"))
from collecting import Arguments, experiment, markdown, origin_of, read, said, some_of, train

HERE = Path(__file__).parent
BATCH, EPOCHS, WARMUP, WINDOW = 128, 4, 10, 50
EPOCH = 526  # steps, in which a compiler meets each length
COLUMNS = ("model", "contender", "seed", "steps", "samples_per_s", "train_s", "wall_s", "padding", "accuracy")


def warmup_of(compiled: bool, steps: int | None) -> int:
    return EPOCH if compiled and steps is None else WARMUP


def mpx(model: str, lengths: str, seed: int, steps: int | None, gpu: bool, compiling: str = "off") -> dict:
    """A run of mpx, with the values that are tuned for the pair."""
    warmup = warmup_of(compiling != "off", steps)
    words = (
        f"task={model}_sst2 precision={'amp_bf16' if gpu else 'fp32'} data.batch_size={BATCH} data.lengths={lengths} "
        f"seed={seed} trainer.max_epochs={EPOCHS} trainer.compile={compiling} trainer.warmup_steps={warmup}"
    )
    if steps is not None:
        words += f" trainer.max_steps={steps} trainer.limit_val_batches=1"
    start = time.perf_counter()
    record = train(words.split())
    return origin_of(record["environment"]) | {
        "steps": record["precision"]["optimizer_steps"],
        "samples_per_s": record["speed"]["train_samples_per_s"],
        "train_s": record["speed"]["time_to_train_s"],
        "wall_s": time.perf_counter() - start,
        "padding": record["data"]["padding_fraction"],
        "accuracy": record["metrics"]["test/accuracy"],
    }


def sst2():
    """The texts as mpx has them: the data set, and the tokens of each text of a split."""
    from omegaconf import OmegaConf

    from mpx.data import load
    from mpx.data.lengths import tokens_of
    from mpx.train import CONF

    data = load(OmegaConf.load(CONF / "data" / "sst2.yaml"))
    return data, {name: tokens_of(getattr(data, name).ids, data.spec.pad_id) for name in ("train", "test")}


def tuned(model: str):
    """The values that are tuned for the pair of model and data."""
    from omegaconf import OmegaConf

    from mpx.train import CONF

    usual = OmegaConf.create({"model": OmegaConf.load(CONF / "model" / f"{model}.yaml")})
    return OmegaConf.merge(usual, OmegaConf.load(CONF / "tuned" / f"{model}_sst2.yaml"))


def network(model: str, spec):
    from mpx.models import build

    return build(dict(tuned(model).model.items()), spec)


class Clock:
    """The rate of the steps after the warm-up."""

    def __init__(self, warmup: int = WARMUP) -> None:
        self.warmup, self.steps, self.began = warmup, 0, 0.0

    def step(self) -> None:
        import torch

        self.steps += 1
        if self.steps == self.warmup:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.began = time.perf_counter()

    def rate(self) -> float:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (self.steps - self.warmup) * BATCH / (time.perf_counter() - self.began)


def transformers_trainer(compiled: bool, seed: int, steps: int | None, gpu: bool) -> dict:
    """Its best: similar lengths in a batch, padded to the longest; BF16 and a fused AdamW on a GPU.

    compiled: by torch.compile, once for all lengths.
    """
    import numpy as np
    import torch
    from transformers import BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    data, tokens = sst2()
    clock, pad = Clock(warmup_of(compiled, steps)), data.spec.pad_id
    os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = str(compiled)  # else it compiles for each length
    values, config = tuned("bert_small"), network("bert_small", data.spec).bert.config
    config.num_labels = data.spec.classes
    torch.manual_seed(seed)
    plain = BertForSequenceClassification(config)

    def rows(name: str) -> list[dict]:
        split = getattr(data, name)
        return [
            {"input_ids": ids[:count].tolist(), "length": count, "labels": label}
            for ids, count, label in zip(split.ids, tokens[name].tolist(), split.labels.tolist(), strict=True)
        ]

    def collate(batch: list[dict]) -> dict:
        longest = max(row["length"] for row in batch)
        ids = [row["input_ids"] + [pad] * (longest - row["length"]) for row in batch]
        ids = torch.tensor(ids)
        labels = torch.tensor([row["labels"] for row in batch])
        return {"input_ids": ids, "attention_mask": (ids != pad).long(), "labels": labels}

    class Steps(TrainerCallback):
        def on_step_end(self, *_, **__):
            clock.step()

        def on_train_end(self, *_, **__):
            self.rate = clock.rate()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, per_device_eval_batch_size=256, seed=seed,
            num_train_epochs=EPOCHS, max_steps=steps or -1, learning_rate=values.model.lr.adamw,
            weight_decay=values.optimizer.weight_decay, label_smoothing_factor=values.label_smoothing,
            warmup_steps=0.05, lr_scheduler_type="cosine", bf16=gpu, optim="adamw_torch_fused",
            dataloader_num_workers=4 if gpu else 0, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, torch_compile=compiled,
            train_sampling_strategy="group_by_length", remove_unused_columns=False,
        )  # fmt: skip
        watch, start = Steps(), time.perf_counter()
        trainer = Trainer(
            plain, arguments, train_dataset=rows("train"), data_collator=collate, callbacks=[watch]
        )
        trainer.train()
        trained = time.perf_counter() - start
        told = trainer.predict(rows("test"))  # in an order of its own, by length
    accuracy = float((np.argmax(told.predictions, -1) == told.label_ids).mean())
    return {
        "steps": clock.steps, "samples_per_s": watch.rate, "train_s": trained,
        "wall_s": time.perf_counter() - start, "accuracy": accuracy,
    }  # fmt: skip


def by_hand(packed: bool, seed: int, steps: int | None, gpu: bool) -> dict:
    """The LSTM in a loop; the data stay on the device. packed: sequences of similar length, without padding; else
    each has 64 tokens, and the step is one CUDA graph.
    """
    import torch
    from hand import recorded
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    from mpx.models.mlp import masked_mean

    data, tokens = sst2()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    model = network("lstm", data.spec).to(device)
    total = steps or EPOCHS * (len(data.train) // BATCH)
    # a tensor, where a graph finds what the schedule writes
    rate = torch.tensor(tuned("lstm").model.lr.adamw, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), rate, fused=True, capturable=gpu)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    clock, start = Clock(), time.perf_counter()

    def logits(x, lengths=None):
        embedded = model.dropout(model.embedding(x))
        if lengths is None:
            outputs = model.lstm(embedded)[0]
        else:
            sequences = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
            outputs, _ = pad_packed_sequence(
                model.lstm(sequences)[0], batch_first=True, total_length=x.shape[1]
            )
        return model.classifier(model.dropout(masked_mean(outputs, x, data.spec.pad_id)))

    def train_on(x, y, lengths=None):
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            loss = torch.nn.functional.cross_entropy(logits(x, lengths), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    def batch_of(split, name: str, index) -> tuple:
        """x, y and the lengths."""
        x, y = split.ids[index.to(device)].long(), split.labels[index.to(device)]
        lengths = tokens[name][index]
        return (x[:, : int(lengths.max())], y, lengths) if packed else (x, y)

    train, test = data.train.to(device), data.test.to(device)
    step = train_on if packed else recorded(train_on, batch_of(train, "train", torch.arange(BATCH)))
    while clock.steps < total:
        for window in torch.randperm(len(train)).split(WINDOW * BATCH):
            similar = window[tokens["train"][window].argsort()] if packed else window
            batches = similar.split(BATCH)
            for place in torch.randperm(len(batches)).tolist():
                if len(batches[place]) < BATCH or clock.steps == total:
                    continue
                step(*batch_of(train, "train", batches[place]))
                schedule.step()
                clock.step()
    speed, trained = clock.rate(), time.perf_counter() - start
    model.eval()
    right = 0
    with torch.no_grad():
        for index in torch.arange(len(test)).split(256):
            x, y, *lengths = batch_of(test, "test", index)
            right += int((logits(x, *lengths).argmax(-1) == y).sum())
    return {
        "steps": clock.steps, "samples_per_s": speed, "train_s": trained,
        "wall_s": time.perf_counter() - start, "accuracy": right / len(test),
    }  # fmt: skip


# (model, contender) -> its run, by seed, steps and whether it is on a GPU
CONTENDERS = {
    ("bert_small", "mpx, fixed"): partial(mpx, "bert_small", "fixed"),
    ("bert_small", "mpx, auto"): partial(mpx, "bert_small", "auto"),
    ("bert_small", "mpx, auto, compiled"): partial(mpx, "bert_small", "auto", compiling="default"),
    ("bert_small", "transformers"): partial(transformers_trainer, False),
    ("bert_small", "transformers, compiled"): partial(transformers_trainer, True),
    ("lstm", "mpx, fixed"): partial(mpx, "lstm", "fixed"),
    ("lstm", "mpx, auto"): partial(mpx, "lstm", "auto"),
    ("lstm", "by hand"): partial(by_hand, True),
    ("lstm", "by hand, padded, graphed"): partial(by_hand, False),
}


def measure(given: argparse.Namespace) -> Iterator[dict]:
    import torch

    gpu = torch.cuda.is_available()
    for seed in given.seeds:
        for model, contender in CONTENDERS:
            if contender in given.contenders and (gpu or "compiled" not in contender):
                row = {"model": model, "contender": contender, "seed": seed}
                yield row | CONTENDERS[model, contender](seed, given.steps, gpu)


def card(rows: list[dict[str, str]]) -> dict[str, str]:
    """The table of speeds, of each device; that of accuracies."""
    tables = []
    for device in dict.fromkeys(row["device"] for row in rows):
        of_device = [row for row in rows if row["device"] == device]
        named: dict[tuple[str, str], list[SimpleNamespace]] = {}
        for row in of_device:
            numbers = ("samples_per_s", "wall_s", "padding", "accuracy")
            values = {key: float(row[key] or "nan") for key in numbers}
            named.setdefault((row["model"], row["contender"]), []).append(SimpleNamespace(**values))
        lines = []
        for (model, contender), runs in named.items():
            fixed = mean(run.samples_per_s for run in named.get((model, "mpx, fixed"), runs))
            rate, padding = mean(run.samples_per_s for run in runs), mean(run.padding for run in runs)
            share = f"{padding:.0%}" if contender.startswith("mpx") else ""
            wall = mean(run.wall_s for run in runs)
            lines.append([model, contender, f"{rate:,.0f}", f"{rate / fixed:.2f}", share, f"{wall:,.0f}"])
        heads = ["", "", "samples/s", "times as fast as fixed", "padding", "s, with start and test"]
        origin = said(of_device, "{steps} steps on {device} of {host}, torch {torch}")
        tables.append(f"{origin}.\n\n{markdown(heads, lines)}")
    return {"table": "\n\n".join(tables), "accuracy": accuracies(read(HERE / "lengths.csv"))}


def accuracies(rows: list[dict[str, str]]) -> str:
    """Grouped less fixed, in points, by the seeds that both have, with 95 % intervals of Student's t."""
    from scipy.stats import ttest_1samp

    named: dict[tuple[str, str], dict[tuple[bool, str], float]] = {}
    for row in rows:
        grouped = row["changes"] == "data.lengths=auto"
        runs = named.setdefault((row["model"], row["precision"]), {})
        runs[grouped, row["seed"]] = 100 * float(row["test/accuracy"])

    def interval(name: str, differences: list[float]) -> list[str]:
        low, high = ttest_1samp(differences, 0).confidence_interval(0.95)
        return [name, str(len(differences)), f"{mean(differences):+.2f} ({low:+.2f} to {high:+.2f})"]

    lines, together = [], []
    for (model, precision), runs in named.items():
        seeds = [seed for grouped, seed in runs if not grouped and (True, seed) in runs]
        if len(seeds) > 1:
            differences = [runs[True, seed] - runs[False, seed] for seed in seeds]
            lines.append(interval(f"{model}, {precision}", differences))
            together += differences
    return markdown(["", "pairs", "grouped − fixed, points"], [*lines, interval("all", together)])


if __name__ == "__main__":
    parser = Arguments()
    parser.add_argument("--steps", type=int, help="train so many steps, not whole epochs")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    names = list(dict.fromkeys(name for _, name in CONTENDERS))
    parser.add_argument("--contenders", type=some_of(names, ";"), default=names, help=";".join(names))
    experiment(HERE, COLUMNS, measure, card, parser=parser)
