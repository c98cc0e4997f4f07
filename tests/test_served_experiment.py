"""experiments/served: the table of accuracy says what its rows say."""

import csv

from documents import README, ROOT, text
from experiment import EXPERIMENTS, script


def row(recipe, fmt, seed, accuracy, **others):
    found = dict.fromkeys(("kept", "samples_per_s", "sparse_layers", "reason"), "")
    found |= {"task": "net_set", "recipe": recipe, "format": fmt, "seed": str(seed), "finetune_epochs": "0", "accuracy": str(accuracy)}
    return found | {"batch": "256", "device": "a GPU", "torch": "2.11", "epochs": "3"} | others


def test_the_table_says_what_its_rows_say():
    dense = [0.900, 0.904, 0.902, 0.898, 0.901]
    rows = [row("asp", "int8", seed, value - 0.02 + 0.0002 * seed) for seed, value in enumerate(dense)]
    rows += [row("asp", "fp16", seed, value - 0.001 - 0.0001 * seed) for seed, value in enumerate(dense)]
    rows += [row("dense", "fp16", seed, value) for seed, value in enumerate(dense)]
    rows[-5] |= {"samples_per_s": "12345.6", "sparse_layers": "0"}
    rows += [row("asp", "int8", 0, 0.9, finetune_epochs="1"), row("asp", "fp16", 5, 0.5, sparse_layers="0")]
    rows += [row("asp", "bf16", 0, "", reason="error: format=bf16: no layer", device="", torch="", epochs="", batch="")]
    found = script("served/accuracy_card.py").tables(rows)
    served = ["Sparse BF16, asp", "Sparse FP16, asp", "Pruned FP16, asp, dense kernels", "Sparse INT8, asp"]
    assert f"| task | Dense FP16 | {' | '.join(served)} | Sparse INT8, asp, fine-tuned for 1 epochs |" in found
    assert "| net_set | 90.10 ± 0.22 | – | 89.98 ± 0.23 | 50.00 | 88.14 ± 0.22 | 90.00 |" in found
    assert "| net_set | Sparse FP16, asp | 5 | -0.12 | -0.14 to -0.10 | yes |" in found
    assert "| net_set | Sparse INT8, asp | 5 | -1.96 | -2.00 to -1.92 | no |" in found
    assert "| net_set | Sparse INT8, asp, fine-tuned for 1 epochs | 1 | +0.00 | – | not decided |" in found
    assert "| net_set | 12,346 (0) | – | – | – | – | – |" in found
    assert found.endswith("a GPU, torch 2.11. Epochs of training: net_set 3.\n\nnet_set, Sparse BF16, asp: format=bf16: no layer")


def test_what_the_card_says_of_serving_is_what_the_rows_say():
    with open(EXPERIMENTS / "served" / "accuracy.csv", newline="") as file:
        rows = [found for found in csv.DictReader(file) if found["accuracy"] and found["trained_accuracy"]]
    apart = dict.fromkeys(("fp16", "int8"), 0.0)
    for found in rows:
        off = abs(100 * (float(found["accuracy"]) - float(found["trained_accuracy"])))
        apart[found["format"]] = max(apart[found["format"]], off)
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    assert f"within {apart['fp16']:.3f} points of its own test after training in FP16, and within {apart['int8']:.3f} in INT8" in words


def test_what_the_card_says_of_speed_is_what_the_rows_say():
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    rates: dict[str, dict[str, float]] = {}
    with open(EXPERIMENTS / "served" / "speed.csv", newline="") as file:
        for found in csv.DictReader(file):
            backend, _, plan = found["candidate"].rpartition(", ")
            name = f"{found['format']} {plan}" if backend in ("graph", "compile") else backend
            rates.setdefault(found["model"], {})[name] = max(float(found["samples_per_s"]), rates.get(found["model"], {}).get(name, 0))
    for model, label in (("bert_large", "BERT-large"), ("bert_base", "BERT-base"), ("resnet50", "ResNet-50")):
        found, dense = rates[model], rates[model]["bf16 own kernels"]
        sparse = found["bf16 fastest kernels"]
        assert f"| {label} | {dense:,.0f} | {sparse:,.0f} ({sparse / dense:.2f}) |" in words
        for plan in ("int8 dense kernels", "int8 fastest kernels", "fp8 dense kernels"):
            assert plan not in found or f"| {found[plan]:,.0f} ({found[plan] / dense:.2f}) |" in words
    assert f"12.3 ms a batch, is missed: it takes {256e3 / rates['bert_base']['bf16 own kernels']:.2f}" in words
    assert not any("autotune" in name for found in rates.values() for name in found)
    ahead = rates["resnet50"]["bf16 own kernels"] / rates["resnet50"]["torchvision"]
    assert f"`weights=auto` chooses that: {ahead:.2f} times torchvision's compiled one" in words
    with open(EXPERIMENTS / "served" / "cpu.csv", newline="") as file:
        times = [(found["format"], found["backend"], float(found["latency_ms_p50"])) for found in csv.DictReader(file)]
    eager = min(ms for fmt, backend, ms in times if backend == "eager")
    (int8,) = (ms for fmt, _, ms in times if fmt == "int8")
    assert f"INT8 {int8:.0f}. So INT8 is at least {eager / int8:.1f} times as fast as eager FP32" in words


def test_what_the_card_says_of_the_speed_of_small_models_is_what_the_rows_say():
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    with open(EXPERIMENTS / "served" / "accuracy.csv", newline="") as file:
        rates = {(r["task"], r["recipe"], r["format"]): float(r["samples_per_s"]) for r in csv.DictReader(file) if r["samples_per_s"]}

    def slower(task, fmt):
        return rates[task, "dense", "fp16"] / rates[task, "asp", fmt]

    assert sparse_without_speed() == {
        ("resnet18_cifar10", "sr_ste"), ("resnet18_fashion_mnist", "sr_ste"), ("resnet18_fashion_mnist (12 epochs)", "asp"),
        ("lstm_sst2", "asp"), ("lstm_sst2", "sr_ste"),
    }  # fmt: skip
    left = "The speed of models by `sr_ste`, of sparse ResNet-18 on Fashion-MNIST and of the LSTM with 2:4 projections was not measured."
    assert left in words
    assert f"only BERT-small in INT8 is faster than dense FP16 ({1 / slower('bert_small_sst2', 'int8'):.2f} times" in words
    assert "ResNet-18 is six times slower (five in INT8)" in words
    assert [round(slower("resnet18_cifar10 (first call)", fmt)) for fmt in ("fp16", "int8")] == [6, 5]


def sparse_without_speed():
    """(task, recipe) that some 2:4 kernel served, and whose speed no row has."""
    with open(EXPERIMENTS / "served" / "accuracy.csv", newline="") as file:
        rows = [found for found in csv.DictReader(file) if int(found["sparse_layers"] or 0)]
    return {(r["task"], r["recipe"]) for r in rows} - {(r["task"], r["recipe"]) for r in rows if r["samples_per_s"]}


def test_what_the_pages_say_of_the_recipes_is_what_the_rows_say():
    made = script("served/accuracy_card.py")
    with open(EXPERIMENTS / "served" / "accuracy.csv", newline="") as file:
        by_recipe, validation = {}, {}
        for found in csv.DictReader(file):
            if not found["format"]:
                by_recipe.setdefault((found["task"], found["recipe"]), {})[int(found["seed"])] = float(found["trained_accuracy"])
                validation.setdefault((found["task"], found["recipe"]), {})[int(found["seed"])] = float(found["validation_accuracy"])
    cifar, fashion = "resnet18_cifar10", "resnet18_fashion_mnist"
    asp, sr_ste = (examined(made, by_recipe[cifar, name], by_recipe[cifar, "dense"]) for name in ("asp", "sr_ste"))
    better = examined(made, validation[cifar, "sr_ste"], validation[cifar, "asp"])
    page, readme = (" ".join(text(path).split()) for path in (ROOT / "docs" / "sparsity.md", README))
    assert f"{-sr_ste[0]:.2f} points below dense ({sr_ste[1]:+.2f} to {sr_ste[2]:+.2f})".replace("-", "−") in page
    assert f"that of `asp` {-asp[0]:.2f} ({-asp[2]:.2f} to {-asp[1]:.2f})" in page
    assert "by {:.1f} points ({:.1f} to {:.1f})".format(*better) in page
    words = f"{-sr_ste[0]:.1f} points below dense by this recipe (95 %: {sr_ste[1]:+.1f} to {sr_ste[2]:+.1f}), {-asp[0]:.1f} by the default"
    assert words.replace("-", "−") in readme
    asp, sr_ste = (examined(made, by_recipe[fashion, name], by_recipe[fashion, "dense"]) for name in ("asp", "sr_ste"))
    assert f"{-sr_ste[0]:.2f} points below dense ({abs(sr_ste[2]):.2f} to {-sr_ste[1]:.2f}) by `sr_ste`" in page
    assert f"{-asp[0]:.2f} ({-asp[2]:.2f} to {-asp[1]:.2f}) by `asp`" in page


def examined(made, mine, theirs):
    """Difference and interval, in points."""
    found = made.examine(mine, theirs, made.METRICS["test/accuracy"], made.MARGIN, made.CONFIDENCE)
    return [100 * value for value in (found.difference, found.low, found.high)]
