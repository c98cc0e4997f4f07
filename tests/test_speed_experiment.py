"""experiments/speed: its script runs here at tiny sizes, and its card says what its rows say."""

import csv
import os
import re
from collections import defaultdict
from statistics import median

import pytest
from documents import text
from experiment import EXPERIMENTS, script
from processes import Fork

FOLDER = EXPERIMENTS / "speed"
card = script("speed/card.py")


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


ORIGIN = {"commit": "abc", "time": "2026-11-25T02:00:00+00:00", "host": "an EPYC #1", "device": "a GPU", "driver": "580", "torch": "2.15"}


def rows_of(section, model, precision, **rates):
    names = {"whole_run": "whole run", "its_steps": "its steps", "two": "2of4", "auto": "mpx, auto", "both": "mpx, both"}
    common = {"section": section, "model": model, "precision": precision, "rejected": "", "note": ""} | ORIGIN
    for name, values in rates.items():
        for number, value in enumerate(values):
            yield common | {"contender": names.get(name, name), "round": str(number), "samples_per_s": str(value)}


def test_the_card_holds_medians_against_targets():
    rows = [*rows_of("rivals", "resnet50", "amp", mpx=[990, 1010], hand=[1000, 1000], lightning=[500, 500], timm=[800, 800])]
    rows += rows_of("plain", "lstm", "fp32", mpx=[90], loop=[100])
    rows += rows_of("rivals", "lstm", "amp", mpx=[998], hand=[1000])
    rows += [row | {"note": "10 epochs; 7.0 s: steps 6.6"} for row in rows_of("whole", "resnet18", "amp", whole_run=[95], its_steps=[100])]
    rows += rows_of("whole", "resnet18", "amp", lightning=[19])
    rows += rows_of("sparse", "bert_small", "amp", two=[90], dense=[100])
    rows += rows_of("ways", "lstm", "amp", auto=[100], both=[110])
    rows += [
        *rows_of("rivals", "bert_small", "amp", mpx=[100], hand=[80]),
        *rows_of("rivals", "bert_small", "amp", **{"mpx, pool=first": [120]}),
    ]
    text = card.results(rows)
    assert "| loop tuned by hand | amp | 1.00 (≥ 1.03) | – | **1.25** (≥ 1.05) | 0.998 (≥ 1) |" in text  # 1.00 would hide that it is missed
    assert "against the whole layer | BERT-small | amp | 1.20 |" in text
    assert "| Lightning's defaults | amp | 2.00 (≥ 2.2) | – | – | – |" in text
    assert "| timm's step | amp | 1.25 | – | – | – |" in text
    assert "| plain eager loop | fp32 | – | – | – | 0.90 (≥ 1) |" in text
    assert "| ResNet-18 | amp | **0.95** (≥ 0.9) |" in text
    assert "| a whole run against one of Lightning's defaults | ResNet-18 | amp | 5.00 |" in text
    assert "| BERT-small | amp | 0.90 (≥ 0.97) |" in text
    assert "| the fastest way set by hand (both) against speed=auto | LSTM | amp | 1.10 |" in text
    assert "| ResNet-50 | amp | mpx | 1,000 | 990 to 1,010 |" in text
    assert "| rivals | a GPU | 2.15, 580 | an EPYC #1 | abc | 2026-11-25T02:00:00+00:00 | 1 to 2 |" in text
    assert "Not measured" not in text
    assert "- ResNet-18, amp, run 1: 10 epochs; 7.0 s: steps 6.6" in text


@pytest.mark.parametrize(
    ("ratio", "least", "shown"),
    [
        (0.998, 1.03, "0.998 (≥ 1.03)"), (0.9951, 0.97, "**0.995** (≥ 0.97)"), (0.997, None, "0.997"), (1.0, 1, "**1.00** (≥ 1)"),
        (1.027, 1.03, "1.027 (≥ 1.03)"), (0.994, None, "0.99"), (1.004, None, "1.00"),
    ],
)  # fmt: skip
def test_a_ratio_just_below_one_or_below_its_target_is_not_rounded_to_it(ratio, least, shown):
    assert card.judged(ratio, least) == shown


def test_the_card_goes_by_model_not_by_when_it_was_measured():
    text = card.results([*rows_of("plain", "lstm", "fp32", mpx=[90]), *rows_of("plain", "resnet50", "fp32", mpx=[80])])
    assert text.index("| ResNet-50 | fp32 | mpx | 80 | 80 to 80 |") < text.index("| LSTM | fp32 | mpx | 90 |")


def test_the_card_says_of_a_commit_that_it_had_changes():
    changed = {"commit": "0f3f9aa7b26b8ac231f808f54ef61661455e260d with changes"}
    text = card.results([row | changed for row in rows_of("plain", "lstm", "fp32", mpx=[90])])
    assert "| 0f3f9aa7b26b with changes |" in text


def test_the_card_lists_what_was_not_measured():
    (row,) = rows_of("rivals", "bert_small", "amp", transformers=[""])
    text = card.results([*rows_of("rivals", "bert_small", "amp", mpx=[1.0]), row | {"note": "No module named 'accelerate'"}])
    assert "- BERT-small, amp, transformers: No module named 'accelerate'" in text


def written(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_what_a_later_host_measured_is_not_mixed_with_earlier_rows(tmp_path):
    later = {"time": "2026-11-25T03:00:00+00:00", "host": "a Xeon #2"}
    old = [*rows_of("plain", "lstm", "fp32", mpx=[100], loop=[50]), *rows_of("sparse", "lstm", "amp", two=[1], dense=[2])]
    parts = [written(tmp_path / "0.csv", [{k: v for k, v in row.items() if k not in ("commit", "rejected")} for row in old])]
    parts += [written(tmp_path / "1.csv", [row | later for row in rows_of("plain", "lstm", "fp32", mpx=[200], loop=[50])])]
    parts += [written(tmp_path / "2.csv", [row | later for row in rows_of("plain", "lstm", "tf32", mpx=[80], loop=[50])])]
    text = card.write_card(tmp_path, parts)
    assert "**4.00** (≥ 1)" in text
    assert "**1.60** (≥ 1)" in text
    assert "- 2 of plain: measured again at 2026-11-25T03:00:00+00:00" in text
    assert "| sparse | a GPU | 2.15, 580 | an EPYC #1 | not recorded |" in text
    assert (tmp_path / "README.md").read_text() == f"<!-- measured -->\n\n{text}\n<!-- end of measured -->\n"
    (tmp_path / "README.md").write_text("before\n<!-- measured -->\nold\n<!-- end of measured -->\nafter\n")
    card.write_card(tmp_path, parts)  # a second time adds nothing
    assert (tmp_path / "README.md").read_text() == f"before\n<!-- measured -->\n\n{text}\n<!-- end of measured -->\nafter\n"
    with open(tmp_path / "results.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 8


def test_a_run_on_a_shared_device_is_kept_and_does_not_count():
    rows = [*rows_of("plain", "lstm", "fp32", mpx=[100, 200], loop=[100, 100])]
    rows[1] |= {"rejected": "1 other process on the device"}
    text = card.results(rows)
    assert "**1.00** (≥ 1)" in text
    assert "- 1 of plain: 1 other process on the device" in text


def test_the_committed_tables_are_of_one_call_each():
    with open(FOLDER / "results.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["rejected"]]
    for section in {row["section"] for row in rows}:
        assert len({tuple(row[name] for name in ORIGIN if name != "time") for row in rows if row["section"] == section}) == 1, section


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


def test_the_kernels_behind_the_rest_in_bf16():
    words, us = " ".join(text(FOLDER / "README.md").split()), defaultdict(dict)
    for row in table("speed/kernels.csv"):
        us[row["model"], row["precision"], row["contender"]][row["kernel"]] = float(row["us_per_step"])
    longer = {way: us["nn.LSTM", "bfloat16", way]["all"] / us["nn.LSTM", "float16", way]["all"] - 1 for way in ("cast", "as trained")}
    assert "takes {:.1%} longer with weights cast before, {:.1%} as trained".format(*longer.values()).replace("%", " %") in words
    trained = us["nn.LSTM", "bfloat16", "as trained"]["all"] - us["nn.LSTM", "float16", "as trained"]["all"]
    rivals = [row for row in table("speed/results.csv") if row["section"] == "rivals" and not row["rejected"] and row["samples_per_s"]]
    lstm = [row for row in rivals if (row["model"], row["precision"]) == ("lstm", "amp_bf16")]
    mpx, hand = (256e6 / median(float(row["samples_per_s"]) for row in lstm if row["contender"] == name) for name in ("mpx", "hand"))
    assert f"The latter are {trained:.0f} µs; on the host of the rivals mpx's step takes {mpx - hand:.0f} µs more." in words
    product = [sum(t for kernel, t in us["lstm", "amp_bf16", who].items() if "64x64_64x13" in kernel) for who in ("mpx", "hand")]
    assert "one product of the recurrence takes {:,.0f} µs in BF16 and {:,.0f} in FP16, by another kernel".format(*product) in words
    assert not any("bfloat" in kernel and "RNN" in kernel for kernel in us["lstm", "amp_bf16", "hand"])
    assert any("bfloat" in kernel and "RNN" in kernel for kernel in us["lstm", "amp_bf16", "mpx"])

    def more(*parts):
        """Of the kernels that have one of the parts in their names, mpx's microseconds above those of the loop."""
        mine, theirs = (us["bert_small", "amp_bf16", name] for name in ("mpx", "hand"))
        return sum(sign * t for found, sign in ((mine, 1), (theirs, -1)) for kernel, t in found.items() if any(p in kernel for p in parts))

    of = sum(us["bert_small", "amp_bf16", "hand"].values())
    assert f"mpx's kernels take {more(''):.0f} µs more of {of:,.0f} µs" in words
    products = more("nvjet", "splitK", "cutlass")
    assert f"of which {more('layer_norm'):.0f} µs are in layer norms and {products:.0f} µs in matrix products" in words
    last = more("triton_per_fused__to_copy_native_dropout_backward_native_layer_norm_backward")
    assert f"backward pass reads it ({last:.0f} µs more)" in words
    mine, theirs = (us["bert_small", "amp_bf16", name] for name in ("mpx", "hand"))
    own = [took for kernel, took in mine.items() if "nvjet" in kernel and kernel not in theirs]
    assert len(own) == 2
    assert f"takes two products ({sum(own):.0f} µs)" in words
    half = {name: sum(us["bert_small", "amp", name].values()) for name in ("mpx", "hand")}
    assert f"In FP16 mpx's kernels take {half['mpx'] - half['hand']:.0f} µs more of {half['hand']:,.0f} µs" in words


def test_kernels_are_counted_in_a_window_before_the_end():
    """A step of 10 ms has two kernels of one name and a copy; before and after the steps comes other work."""
    kernels = script("speed/kernels.py")
    events = [{"cat": "kernel", "name": "compile", "ts": float(ts), "dur": 10.0} for ts in range(0, 100_000, 1000)]
    for step in range(100):
        start = 200_000.0 + 10_000 * step
        events += [{"cat": "kernel", "name": "matmul", "ts": start + offset, "dur": 4000.0} for offset in (0, 4500)]
        events += [{"cat": "gpu_memcpy", "name": "copy", "ts": start + 9000, "dur": 500.0}]
        events += [{"cat": "cpu_op", "name": "aten::mm", "ts": start, "dur": 9000.0}]
    events += [{"cat": "kernel", "name": "evaluation", "ts": 1_200_000.0 + 1000 * batch, "dur": 900.0} for batch in range(200)]
    assert list(kernels.kernels(events, step_us=10_000)) == [
        {"kernel": "matmul", "us_per_step": 8000.0, "calls_per_step": 2.0},
        {"kernel": "copy", "us_per_step": 500.0, "calls_per_step": 1.0},
    ]


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
