"""experiments/speed: its script runs here at tiny sizes, and its card says what its rows say."""

import csv
import os
import re
from statistics import median

import pytest
from documents import text
from experiment import EXPERIMENTS, script
from processes import Fork

FOLDER = EXPERIMENTS / "speed"


def measured(tmp_path, *arguments):
    """The rows that a trial of run.py writes."""
    run = Fork("--tiny", "--rounds", "1", *arguments, folder=tmp_path, env={"OUT": str(tmp_path)}, script=FOLDER / "run.py")
    assert run.wait(280) == 0, run.err
    assert run.out.count("\n== ") + run.out.startswith("== ") == run.out.count("== ")
    with open(tmp_path / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_rivals_bert_has_no_mask(tmp_path):
    (program := tmp_path / "masks.py").write_text(
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); "
        "import hand, setups; hand.bert(setups.setup('bert_small', 'amp', tiny=True)); "
        "from transformers.models.bert.modeling_bert import create_bidirectional_mask; print(create_bidirectional_mask(config=None))"
    )
    run = Fork(folder=tmp_path, script=program)
    assert run.wait() == 0, run.err
    assert run.out == "None\n"


@pytest.mark.slow
def test_text_models(tmp_path):
    sections = ["--sections", "rivals,plain,numerics", "--precisions", "amp_bf16,tf32"]
    rows = measured(tmp_path, *sections, "--models", "bert_small")
    found = {(row["section"], row["model"], row["contender"]) for row in rows}
    assert {("rivals", "bert_small", name) for name in ("mpx", "hand", "loop", "lightning", "lightning, tuned")} <= found
    assert {("plain", "bert_small", name) for name in ("mpx", "hand", "loop")} <= found
    assert {("numerics", "bert_small", name) for name in ("on", "off")} < found
    for name in ("mpx, pool=first", "hand, types looked up", "transformers", "transformers, tuned"):
        assert ("rivals", "bert_small", name) in found
    for row in rows:
        assert all(row[name] for name in ("commit", "time", "host", "device", "torch")), row
        assert row["samples_per_s"] or "No module named 'accelerate'" in row["note"], row
        assert row["contender"].startswith(("transformers", "mpx", "on", "off")) or row["note"]


@pytest.mark.slow
def test_image_models(tmp_path):
    rows = measured(tmp_path, "--sections", "rivals", "--models", "resnet50", "--precisions", "amp_bf16", "--contenders", "hand,timm")
    assert [row["contender"] for row in rows] == ["hand", "timm"]
    assert all(float(row["samples_per_s"]) > 0 for row in rows), rows


@pytest.mark.slow
def test_masks_whole_runs_and_what_cannot_be(tmp_path):
    rows = measured(tmp_path, "--sections", "sparse", "--models", "bert_small") + measured(tmp_path, "--sections", "whole")
    assert all(row["samples_per_s"] for row in rows), rows
    whole = {row["contender"]: row for row in rows if row["section"] == "whole"}
    assert whole.keys() == {"its steps", "whole run", "hand", "hand, not compiled", "lightning"}
    (note,) = {whole[name]["note"] for name in ("its steps", "whole run")}
    seconds = float(re.search(r"; (\S+) s: ", note)[1])
    parts = {name: float(part) for name, part in re.findall(r"(\w+) (\d+\.\d+)", note.partition(" s: ")[2])}
    assert parts.keys() == {"warmup", "steps", "validation", "other", "end"}
    assert sum(parts.values()) == pytest.approx(seconds, abs=0.01)
    batch, steps = int(whole["whole run"]["batch"]), int(whole["whole run"]["steps"])
    assert float(whole["whole run"]["samples_per_s"]) * seconds == pytest.approx(batch * steps, rel=0.01)
    timed = float(whole["its steps"]["samples_per_s"]) * parts["steps"] / batch
    assert timed == pytest.approx(round(timed), rel=0.01)  # a whole number of steps
    assert 0 < round(timed) < steps  # without those of the warm-up
    (refused,) = measured(tmp_path, "--sections", "ways", "--models", "lstm", "--precisions", "fp32", "--ways", "graph")
    assert refused["samples_per_s"] == ""
    assert refused["note"].startswith("UserError: trainer.cuda_graphs=true is not possible: ") or os.environ.get("CUDA_VISIBLE_DEVICES")


def table(path):
    with open(EXPERIMENTS / path, newline="") as file:
        return list(csv.DictReader(file))


def test_what_the_card_says_beside_its_tables_is_what_rows_say():
    words = " ".join(text(FOLDER / "README.md").split())
    rates: dict[tuple, list[float]] = {}
    for row in table("speed/results.csv"):
        if row["section"] == "rivals" and row["samples_per_s"] and not row["rejected"]:
            rates.setdefault((row["precision"], row["model"], row["contender"]), []).append(float(row["samples_per_s"]))
    hand = {key[:2]: 100 * (median(found) / median(rates[*key[:2], "mpx"]) - 1) for key, found in rates.items() if key[2] == "hand"}
    half, bf16 = ({model: percent for (name, model), percent in hand.items() if name == precision} for precision in ("amp", "amp_bf16"))
    assert half.keys() == bf16.keys() == {"resnet50", "resnet18", "bert_small", "lstm"}
    assert f"is as fast as mpx to within {max(map(abs, half.values())):.1f} %." in words
    least, most = min(bf16.values()), max(bf16.values())
    assert (
        f"In BF16 it is {least:.1f} to {most:.1f} % faster: least for ResNet-18, then ResNet-50 and BERT-small, most for the LSTM" in words
    )
    assert sorted(bf16, key=bf16.get) == ["resnet18", "resnet50", "bert_small", "lstm"]
    best = {key[2]: max(rates["amp", "bert_small", "mpx"]) / max(found) for key, found in rates.items() if key[:2] == ("amp", "bert_small")}
    assert f"mpx is {best['loop']:.2f} times as fast as the plain loop, {best['lightning']:.2f} as Lightning's defaults, and" in words
    assert f"and {best['transformers, tuned']:.2f} as transformers' Trainer, tuned" in words
    apart = max(max(found) / min(found) - 1 for (_, model, _), found in rates.items() if model == "bert_small")
    assert f"differ by up to {100 * apart:.0f} % between two rounds" in words
    whole = [row["note"] for row in table("speed/results.csv") if row["contender"] == "whole run" and not row["rejected"]]
    spent = [dict(re.findall(r"(\w+) (\d+\.\d+)", note)) for note in whole]
    lost = {part: f"{median(float(run[part]) for run in spent):.1f}" for part in ("warmup", "validation", "other", "end")}
    assert f"records the graph ({lost['warmup']} s), in validation ({lost['validation']})" in words
    assert f"between epochs ({lost['other']}), and in the last checkpoint ({lost['end']})" in words
    runs = [row for row in table("auto/results.csv") if (row["steps"], row["cache"]) == ("30000", "empty")]
    rates = {(row["model"], row["setting"]): float(row["samples_per_s"]) for row in runs}
    left = [f"{rates[model, 'off'] / rates[model, 'default']:.2f}" for model in ("resnet18", "resnet50", "bert_small")]
    assert "a compiled step takes {}, {} and {} times as long".format(*left) in words


def test_made_up_images_have_the_sizes_of_fashion_mnist(tmp_path):
    from types import SimpleNamespace

    from mpx.data import load

    script("speed/whole.py").make(tmp_path / "FashionMNIST" / "raw")
    about = {"name": "fashion_mnist", "root": tmp_path, "download": False, "val_size": 2000, "augment": "crop_flip", "pad": 4, "crop": None}
    about |= {"cutout": 0, "image_size": None, "mean": [0.3], "std": [0.3]}
    about |= {"batch_size": 512, "eval_batch_size": 1000, "loader": "auto", "workers": 0}
    data = load(SimpleNamespace(**about))
    assert data.sizes == {"train": 58_000, "val": 2_000, "test": 10_000}
    assert data.train.labels.bincount().tolist() == [5_800] * 10
