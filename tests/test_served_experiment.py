"""experiments/served: the table of accuracy says what its rows say."""

import csv

import pytest
from documents import README, ROOT, text
from experiment import EXPERIMENTS, script


def row(recipe, fmt, seed, accuracy, **others):
    found = dict.fromkeys(("kept", "samples_per_s", "sparse_layers", "reason"), "")
    found |= {"task": "net_set", "recipe": recipe, "format": fmt, "seed": str(seed), "accuracy": str(accuracy)}
    return found | {"batch": "256", "device": "a GPU", "torch": "2.11", "epochs": "3"} | others


def test_the_table_says_what_its_rows_say():
    dense = [0.900, 0.904, 0.902, 0.898, 0.901]
    rows = [row("asp", "int8", seed, value - 0.02 + 0.0002 * seed) for seed, value in enumerate(dense)]
    rows += [row("asp", "fp16", seed, value - 0.001 - 0.0001 * seed) for seed, value in enumerate(dense)]
    rows += [row("dense", "fp16", seed, value) for seed, value in enumerate(dense)]
    rows[-5] |= {"samples_per_s": "12345.6", "sparse_layers": "0"}
    rows += [row("asp", "fp16", 5, 0.5, sparse_layers="0")]
    rows += [row("asp", "bf16", 0, "", reason="error: format=bf16: no layer", device="", torch="", epochs="", batch="")]
    found = script("served/accuracy_card.py").tables(rows)
    served = ["Sparse BF16, asp", "Sparse FP16, asp", "Pruned FP16, asp, dense kernels", "Sparse INT8, asp"]
    assert f"| task | Dense FP16 | {' | '.join(served)} |" in found
    assert "| net_set | 90.10 ± 0.22 | – | 89.98 ± 0.23 | 50.00 | 88.14 ± 0.22 |" in found
    assert "| net_set | Sparse FP16, asp | 5 | -0.12 | -0.14 to -0.10 | yes |" in found
    assert "| net_set | Sparse INT8, asp | 5 | -1.96 | -2.00 to -1.92 | no |" in found
    assert "| net_set | 12,346 (0) | – | – | – | – |" in found
    assert found.endswith("a GPU, torch 2.11. Epochs of training: net_set 3.\n\nnet_set, Sparse BF16, asp: format=bf16: no layer")


def test_verdicts_are_corrected_for_the_settings_of_a_task():
    made = script("served/accuracy_card.py")
    dense = {seed: 0.9 + 0.001 * seed for seed in range(5)}
    near, far = ({seed: value - loss + 0.0022 * (seed - 2) for seed, value in dense.items()} for loss in (0.001, 0.02))
    alone = made.compared({"near": made.test(near, dense)})
    both = made.compared({"near": made.test(near, dense), "far": made.test(far, dense)})
    assert (alone["near"][-1], both["near"][-1], both["far"][-1]) == ("yes", "not decided", "no")
    assert alone["near"][:-1] == both["near"][:-1] == (5, "-0.10", "-0.53 to +0.33")


def test_what_the_card_says_of_serving_is_what_the_rows_say():
    with open(EXPERIMENTS / "served" / "accuracy.csv", newline="") as file:
        rows = [found for found in csv.DictReader(file) if found["accuracy"] and found["trained_accuracy"]]
    apart = dict.fromkeys(("fp16", "int8"), 0.0)
    for found in rows:
        off = abs(100 * (float(found["accuracy"]) - float(found["trained_accuracy"])))
        apart[found["format"]] = max(apart[found["format"]], off)
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    assert f"within {apart['fp16']:.3f} points of its own test after training in FP16, and within {apart['int8']:.3f} in INT8" in words


CARDS = {"NVIDIA H100 80GB HBM3": "", "NVIDIA H200": ", H200"}  # device: behind the name of a model in the card


def rates():
    """Samples per second by device, model, and format with plan, or rival: the best of compiled and graphed."""
    found = {device: {} for device in CARDS}
    with open(EXPERIMENTS / "served" / "speed.csv", newline="") as file:
        for row in csv.DictReader(file):
            backend, _, plan = row["candidate"].partition(", ")
            name = f"{row['format']} {plan or 'own kernels'}" if backend in ("graph", "compile") else row["candidate"]
            of_model = found[row["device"]].setdefault(row["model"], {})
            of_model[name] = max(float(row["samples_per_s"]), of_model.get(name, 0))
    return found


@pytest.mark.parametrize("device", CARDS)
def test_what_the_card_says_of_speed_is_what_the_rows_say(device):
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    for model, label in (("bert_large", "BERT-large"), ("bert_base", "BERT-base"), ("resnet50", "ResNet-50")):
        found = rates()[device][model]
        dense, sparse = found["bf16 own kernels"], found["bf16 fastest kernels"]
        plans = ("int8 dense kernels", "int8 fastest kernels", "fp8 dense kernels")
        others = [f"{found[plan]:,.0f} ({found[plan] / dense:.2f})" if plan in found else "–" for plan in plans]
        line = f"| {label}{CARDS[device]} | {dense:,.0f} | {sparse:,.0f} ({sparse / dense:.2f}) | {' | '.join(others)} |"
        assert line in words
        rival = "torchvision" if model == "resnet50" else "transformers"
        counts = [f"{found[f'{rival}, eager']:,.0f}"]
        counts += [
            f"{found[f'{rival}, {way}']:,.0f}" if rival == "torchvision" or not CARDS[device] else "–" for way in ("graph", "compile")
        ]
        assert f"{line} {' / '.join(counts)} |" in words


def test_what_the_page_says_of_speed_is_what_the_rows_say():
    page = " ".join(text(ROOT / "docs" / "deploy.md").split())
    gains = {}
    for device, of_models in rates().items():
        for model, found in of_models.items():
            plans = ("bf16 fastest kernels", "int8 fastest kernels", "fp8 dense kernels")
            gains[device, model] = [f"{found[plan] / found['bf16 own kernels']:.2f}" for plan in plans if plan in found]
    h100, h200 = CARDS
    large, base, small = (gains[h100, f"bert_{size}"] for size in ("large", "base", "small"))
    assert f"mpx serves BERT-large {large[0]} (BF16) and {large[1]} (INT8) times as fast as dense in BF16" in page
    assert f"BERT-base {base[0]} and {base[1]} times, and BERT-small {small[0]} and {small[1]} times, on an H100" in page
    large_there, base_there = gains[h200, "bert_large"], gains[h200, "bert_base"]
    assert f"on an H200 it was {' and '.join(large_there[:2])} times for BERT-large, {' and '.join(base_there[:2])} for BERT-base" in page
    assert f"dense FP8 is faster than with 2:4 in BF16 ({large[2]} times dense BF16)" in page
    assert large[0] < large[2] < large[1]


def test_what_the_card_says_of_the_fastest_dense_model_is_what_the_rows_say():
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    h100, h200 = rates().values()
    dense, eager = (256e3 / h200["bert_base"][name] for name in ("bf16 own kernels", "transformers, eager"))
    assert f"{256e3 / h100['bert_base']['bf16 own kernels']:.2f} ms a batch on the H100 and {dense:.2f} on the H200" in words
    assert f"in the H200's call here it took {eager:.2f}.)" in words
    assert f"makes it slower: {256e3 / h100['bert_base']['autotune, own kernels']:.2f} ms on the H100" in words
    ahead = [h100[name]["bf16 own kernels"] / h100[name]["transformers, compile"] for name in ("bert_base", "bert_large", "bert_small")]
    assert "mpx's BERT-base and BERT-large have {:.2f} and {:.2f} times its speed, BERT-small {:.2f}".format(*ahead) in words
    ahead = [found["resnet50"]["bf16 own kernels"] / found["resnet50"]["torchvision, compile"] for found in (h100, h200)]
    assert "it has {:.2f} times the speed of torchvision's compiled one (H200: {:.2f})".format(*ahead) in words
    eight = [found["bert_large"] for found in (h100, h200)]
    for plan in ("bf16 fastest kernels", "int8 fastest kernels"):
        here, there = (found[plan] / found["fp8 dense kernels"] for found in eight)
        assert any(f"{here:.2f}{rest} ({before}{there:.2f})" in words for rest, before in ((" of its speed", "H200: "), ("", "")))


def test_what_the_card_says_of_small_models_with_every_kernel_is_what_the_rows_say():
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    of_all = [found for found in rates()["NVIDIA H100 80GB HBM3"].values() if "int8 own kernels" in found]
    again = [found["bf16 own kernels"] / found["int8 own kernels"] for found in of_all]  # the same dense model
    assert f"differs by up to {100 * max(max(ratio, 1 / ratio) - 1 for ratio in again):.1f} %" in words
    for model, label in (("bert_small", "BERT-small"), ("resnet18", "ResNet-18"), ("lstm", "LSTM")):
        found = rates()["NVIDIA H100 80GB HBM3"][model]
        dense = found["bf16 own kernels"]
        plans = ("bf16 fastest kernels", "int8 dense kernels", "int8 fastest kernels")
        others = " | ".join(f"{found[plan]:,.0f} ({found[plan] / dense:.2f})" for plan in plans)
        half = found["fp16 own kernels"]
        assert f"| {label} | {half:,.0f} ({half / dense:.2f}) | {dense:,.0f} | {others} |" in words


def test_what_the_card_says_of_layers_is_what_the_rows_say():
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    layers: dict[tuple, dict[str, float]] = {}
    number: dict[tuple, int] = {}
    with open(EXPERIMENTS / "served" / "layers.csv", newline="") as file:
        for row in csv.DictReader(file):
            name = (row["model"], row["format"], row["layer"], row["shape"])
            layers.setdefault(name, {})[row["kernel"]] = float(row["ms"])
            number[name] = int(row["layers"])

    def fastest(ms, of):
        return min(value for kernel, value in ms.items() if of in kernel)

    def ratios(model, fmt, part, than="own"):
        """The fastest 2:4 kernel ÷ the fastest of kernels `than`, of the layers whose name or shape contains `part`."""
        mine = (ms for (m, f, layer, shape), ms in layers.items() if (m, f) == (model, fmt) and part in f"{layer} {shape}")
        return sorted(fastest(ms, "2:4") / fastest(ms, than) for ms in mine)

    for model in ("bert_base", "bert_large", "bert_small"):
        assert all(ratio < 1 for fmt in ("bf16", "int8") for ratio in ratios(model, fmt, "encoder"))
    feed, int8 = (ratios("bert_large", fmt, "4096") for fmt in ("bf16", "int8"))
    assert f"2:4 takes {feed[0]:.2f} times as long as the dense BF16 product in BF16, and at most {int8[-1]:.2f} times in INT8" in words
    assert f"{feed[-1]:.2f}" == f"{feed[0]:.2f}"
    others = [ratios("bert_large", fmt, "query")[0] for fmt in ("bf16", "int8")]
    assert "in the other layers of its encoder {:.2f} and {:.2f}".format(*others) in words
    base = ratios("bert_base", "bf16", "encoder")
    assert f"it takes {base[0]:.2f} to {base[-1]:.2f} times as long in BF16" in words
    by_product, own, patches = (
        ratios("resnet50", "bf16", "×1×1", "matrix product"),
        *(ratios("resnet50", "bf16", k) for k in ("×1×1", "×3×3")),
    )
    assert f"take {by_product[0]:.2f} to {by_product[-1]:.2f} times as long as the dense matrix product" in words
    assert f"as little as {own[0]:.2f} times as long as the convolution's own kernel" in words
    assert f"take {patches[0]:.1f} to {patches[-1]:.1f} times as long as their own" in words
    assert all(ratio > 1 for model in ("bert_small", "resnet18", "lstm") for ratio in ratios(model, "fp16", ""))

    def with_2of4(model, fmt):
        mine = [(ms, number[name]) for name, ms in layers.items() if name[:2] == (model, fmt)]
        return sum(count for ms, count in mine if "2:4" in min(ms, key=ms.get)), sum(count for _, count in mine)

    for model, name in (("bert_large", "BERT-large"), ("bert_base", "BERT-base"), ("bert_small", "BERT-small"), ("resnet50", "ResNet-50")):
        counts = {with_2of4(model, fmt) for fmt in ("bf16", "int8") if (model, fmt) != ("resnet50", "int8")}
        assert [f"{sparse} of {of} in {name}" in words for sparse, of in counts] == [True]
    for model, name in (("resnet18", "ResNet-18"), ("lstm", "the LSTM")):
        (half, of), (eight, _) = with_2of4(model, "bf16"), with_2of4(model, "int8")
        assert f"{half} (BF16) and {eight} (INT8) of {of} in {name}" in words


def test_what_the_card_says_of_a_cpu_is_what_the_rows_say():
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    with open(EXPERIMENTS / "served" / "cpu.csv", newline="") as file:
        times = [(found["format"], found["backend"], float(found["latency_ms_p50"])) for found in csv.DictReader(file)]
    eager = min(ms for fmt, backend, ms in times if backend == "eager")
    (int8,) = (ms for fmt, _, ms in times if fmt == "int8")
    assert f"INT8 {int8:.0f}. So INT8 is at least {eager / int8:.1f} times as fast as eager FP32" in words


def test_what_the_card_says_of_the_speed_of_small_models_is_what_the_rows_say():
    words = " ".join(text(EXPERIMENTS / "served" / "README.md").split())
    with open(EXPERIMENTS / "served" / "accuracy.csv", newline="") as file:
        full = {(r["task"], r["recipe"], r["format"]): float(r["samples_per_s"]) for r in csv.DictReader(file) if r["samples_per_s"]}

    def slower(task, fmt):
        return full[task, "dense", "fp16"] / full[task, "asp", fmt]

    assert sparse_without_speed() == {
        ("resnet18_cifar10", "sr_ste"), ("resnet18_fashion_mnist", "sr_ste"), ("resnet18_fashion_mnist (12 epochs)", "asp"),
        ("lstm_sst2", "asp"), ("lstm_sst2", "sr_ste"),
    }  # fmt: skip
    left = "The speed of models by `sr_ste`, of sparse ResNet-18 on Fashion-MNIST and of the LSTM with 2:4 projections was not measured in"
    assert left in words
    assert f"only BERT-small in INT8 is faster than dense FP16 ({1 / slower('bert_small_sst2', 'int8'):.2f} times" in words
    small = rates()["NVIDIA H100 80GB HBM3"]["bert_small"]
    gains = [small[f"{fmt} fastest kernels"] / small["bf16 own kernels"] for fmt in ("bf16", "int8")]
    assert "{:.2f} times as fast in BF16 and {:.2f} times in INT8 as dense in BF16".format(*gains) in words
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
