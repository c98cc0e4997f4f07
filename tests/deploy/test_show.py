"""The tables and the model card say what deploy.json says: each figure at its place; and the card's code
loads the weights.
"""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from made_runs import GPU, deployed_row, record
from started import start

from mpx.data import LICENCES, SETS
from mpx.deploy import __main__ as deploy_main
from mpx.deploy.show import card, show, show_all, verdict

CONF = Path(__file__).parents[2] / "conf" / "data"
AT = {
    "serve_samples_per_s": 1001.0,
    "latency_ms_p50": 0.111,
    "latency_ms_p95": 0.222,
    "latency_ms_p99": 0.333,
    "relative_error": 1.5e-3,
}
LARGE = {
    "serve_samples_per_s": 57657.0,
    "latency_ms_p50": 4.44,
    "latency_ms_p95": 5.55,
    "latency_ms_p99": 6.66,
    "relative_error": 2.5e-4,
}
LAYER = {"shape": [64, 32], "rows": 512, "reason": None, "refused": {}, "served": "int8 2:4 written"}
MS = {"own": 0.5, "int8 matrix product": 0.4, "int8 2:4 written": 0.3}
ROW = deployed_row(
    format="int8",
    backend="compile",
    sparse_layers=["fc"],
    quantised_layers=["fc", "out"],
    metrics={"test/loss": 0.5, "test/accuracy": 0.8125},
    speed=[
        {"batch": 1}
        | AT
        | {
            "backend": "graph",
            "sparse_layers": [],
            "candidates": {},
            "refused": {"compile, own kernels": "other"},
        },
        {"batch": 256}
        | LARGE
        | {
            "backend": "compile",
            "sparse_layers": ["fc"],
            "refused": {},
            "candidates": {"compile": 57657.0, "graph": 57000.0},
        },
    ],
    weights_gib=0.0123,
    memory={"peak_allocated_gib": 1.25, "peak_reserved_gib": 2.5, "peak_rss_gib": 5.0},
    layers=[
        *(LAYER | {"name": name, "ms": MS} for name in ("fc", "twin")),
        LAYER | {"name": "lstm", "ms": {}, "reason": "why"},
    ],
    exports={"onnx": {"file": "served/x/model.onnx", "bytes": 3}},
    exports_refused={},
    cpu_used_by_others=0.0,
)
RUN = record(accuracy=0.875, sparsity="2of4") | {
    "config": {"data": {}, "trainer": {"limit_test_batches": 1.0}}
}


def cells(text):
    """Of each line of a table."""
    return [
        [cell.strip() for cell in line.replace("┃", "│").strip("│ ").split("│")] for line in text.splitlines()
    ]


def test_tables(capsys):
    show(ROW, RUN)
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == f"served on {GPU}"
    found = cells(out)
    assert ["int8", "dense", "graph", "1", "0.8125", "1,001", "0.111", "0.333", "1.5e-03", "12.60"] in found
    assert [
        "int8",
        "2:4 in 1",
        "compile",
        "256",
        "0.8125",
        "57,657",
        "4.44",
        "6.66",
        "2.5e-04",
        "12.60",
    ] in found
    assert "fc │ 2 │ 64×32 │ 512 │ int8 2:4 written 0.3000" in " │ ".join(
        next(line for line in found if line[0] == "fc")
    )
    assert "lstm" not in out  # the layer without other kernels has no line
    assert out[out.index("test accuracy 0.8125 as") :].splitlines() == [
        "test accuracy 0.8125 as served, 0.8750 after training",
        "layers that multiply INT8: 2",
        "not possible at batch 1: compile, own kernels (other)",
        "measured at batch 256, samples/s: compile 57,657; graph 57,000",
        "weights 12.60 MiB, peak memory 1,280.00 MiB",
    ]


def test_several_runs_have_the_names_of_a_comparison(capsys):
    runs = {
        Path("a/seed0"): record(precision="fp32", **{"trainer.max_epochs": 3}),
        Path("b/seed1"): record(precision="amp_bf16", **{"trainer.max_epochs": 3}),
    }
    show_all([(folder, content, deployed_row()) for folder, content in runs.items()])
    names = [line[:24].strip() for line in capsys.readouterr().out.splitlines() if " fp16 " in line]
    assert names == ["fp32-dense seed0"] * 2 + ["amp_bf16-dense seed1"] * 2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"quantised_layers": []}, "No layer multiplies INT8: the model is served in BF16."),
        ({"sparse_layers": []}, "No layer is served with a 2:4 kernel (lstm: why)."),
        (
            {"exclusive": False, "exclusive_reason": "pid 7"},
            "Not alone on the device (pid 7): the speed is too low.",
        ),
        (
            {"exclusive": False, "device": "cpu", "cpu_used_by_others": 0.12, "exclusive_reason": "x"},
            "(shared, 12%)",
        ),
        (
            {"exclusive": None, "exclusive_reason": "NVML: none"},
            "It is unknown whether others used the device (NVML: none):",
        ),
    ],
)
def test_what_a_reader_must_know(capsys, change, line):
    show(ROW, RUN)
    assert line not in " ".join(capsys.readouterr().out.split())
    show(ROW | change, RUN)
    assert line in " ".join(capsys.readouterr().out.split())


def test_of_a_dense_run_nothing_is_said_about_2of4(capsys):
    show(ROW | {"sparse_layers": []}, record() | {"config": RUN["config"]})
    assert "2:4 kernel" not in capsys.readouterr().out


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_card_of_a_real_run(deploy, tmp_path, monkeypatch):
    """Its command measures the rows again."""
    # as if started by python -m mpx.deploy
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", deploy_main.__spec__)
    done, (row,) = deploy("mlp", "batch=[4,64]", "backend=eager", "weights=dense")
    assert "deploy.json and card.md" in done.words
    text = (deploy.folder / "card.md").read_text()
    trained = json.loads((deploy.folder / "result.json").read_text())["metrics"]["test/accuracy"]
    assert text.startswith("# mlp on digits, fp32-2of4, seed 0\n")
    assert f"test accuracy after training: {trained:.4f}. The test set has 360 samples." in text
    assert "Data: digits. Licence: CC BY 4.0 (UCI Machine Learning Repository)." in text
    assert (
        "Sparsity: 2of4, density 0.500 over the pruned layers, verified. Served dense on a CPU: 2:4 "
        "kernels need a CUDA device."
    ) in text
    assert f"served on {row['environment']['cpu']}, {row['environment']['threads']} thread" in text
    assert re.search(
        rf"^\| fp32 \| dense \| eager \| 64 \| {row['metrics']['test/accuracy']:.4f} \|", text, re.MULTILINE
    )
    assert f"torch {torch.__version__}" in text
    (command,) = blocks(text, "bash")[0].splitlines()
    again = start(deploy_main.main, tmp_path, *shlex.split(command)[3:])
    assert again.code == 0
    assert len(json.loads((deploy.folder / "deploy.json").read_text())["rows"]) == 1


def carded(folder, content, *rows):
    content["config"].setdefault("model", {})
    (folder / "deploy.json").write_text(json.dumps({"rows": rows or [deployed_row(test_samples=360)]}))
    return card(folder, content)


def test_a_language_model_has_a_perplexity(tmp_path):
    content = record()
    content["metrics"] = {"test/accuracy": 0.2, "test/perplexity": 65.6}
    row = deployed_row(metrics={"test/perplexity": 65.9}, metric={"name": "test/perplexity", "goal": "min"})
    text = carded(tmp_path, content, row)
    assert "test perplexity after training: 65.6000." in text
    assert "| 65.9000 |" in text


def test_every_data_set_has_a_licence():
    assert set(LICENCES) == set(SETS) == {path.stem for path in CONF.glob("*.yaml")}


PLAIN = {"format": "fp32", "quantised_layers": [], "metrics": {"test/accuracy": 0.975}}
FP32 = deployed_row(rate=1000.0, **PLAIN)
FIGURES = "; margin 0.5 points; {} against 1,000 samples/s at batch 256."


def int8(rate, accuracy, **changed):
    return deployed_row(rate=rate, format="int8", metrics={"test/accuracy": accuracy}, **changed)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (
            [int8(2100.0, 0.972), deployed_row(rate=1500.0, **PLAIN | {"format": "bf16"})],
            [
                "INT8 answers 2.10 × as fast as FP32 at no loss of accuracy.",
                "INT8: accuracy 97.2 % against 97.5 %, difference −0.3 points" + FIGURES.format("2,100"),
            ],
        ),
        (
            [int8(2100.0, 0.95)],
            [
                "No other way answers faster than FP32 at no loss of accuracy.",
                "INT8: accuracy 95.0 % against 97.5 %, difference −2.5 points" + FIGURES.format("2,100"),
            ],
        ),
        (
            [int8(900.0, 0.98, sparse_layers=["fc"])],
            [
                "No other way answers faster than FP32 at no loss of accuracy.",
                "INT8 with 2:4 kernels: accuracy 98.0 % against 97.5 %, difference +0.5 points"
                + FIGURES.format("900"),
            ],
        ),
        (
            [int8(2100.0, 0.972, exclusive=False, exclusive_reason="other programs used 12% of the CPU")],
            ["No verdict, since other programs used 12% of the CPU while INT8 was measured."],
        ),
        ([FP32 | {"weights": "dense"}], []),
    ],
)
def test_of_an_accuracy(others, said):
    assert verdict([*others, FP32]) == said


def test_of_a_perplexity():
    def row(fmt, rate, value):
        metric = {"metric": {"name": "test/perplexity", "goal": "min"}, "metrics": {"test/perplexity": value}}
        return deployed_row(rate=rate, format=fmt, quantised_layers=[], **metric)

    assert verdict([row("fp32", 1000.0, 65.6), row("bf16", 1500.0, 65.9)]) == [
        "BF16 answers 1.50 × as fast as FP32 at no loss of perplexity.",
        "BF16: perplexity 65.90 against 65.60; margin 0.5 %; 1,500 against 1,000 samples/s at batch 256.",
    ]
