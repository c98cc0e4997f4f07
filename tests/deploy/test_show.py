"""The tables and the model card say what deploy.json says: each figure at its place; and the card's code
loads the weights.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_runs import GPU, deployed_row, record
from started import start
from transformers import GPT2ForSequenceClassification

from mpx.compare.statistics import wilson
from mpx.data import LICENCES, SETS
from mpx.data.spec import Spec
from mpx.deploy import __main__ as deploy_main
from mpx.deploy.build import of_run
from mpx.deploy.show import card, show
from mpx.models import build

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
    cpu_busy=None,
)
RUN = record(accuracy=0.875) | {"config": {"data": {}, "trainer": {"limit_test_batches": 1.0}}}


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
    low, high = wilson(trained, 360, 0.95)
    assert text.startswith("# mlp on digits, fp32-2of4, seed 0\n")
    assert (
        f"test accuracy after training: {trained:.4f} ({low:.4f} to {high:.4f}, 95 % confidence, 360 "
        "samples)."
    ) in text
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
    assert (again.code, "in place of an earlier row" in again.words) == (0, True)


@pytest.mark.parametrize(
    "name",
    ["mlp", pytest.param("resnet", marks=pytest.mark.slow), pytest.param("lstm", marks=pytest.mark.slow)],
)
def test_its_code_loads_what_is_served(deploy, name, monkeypatch):
    """In a fresh process without mpx, a stand-in of the model says what it is given; resnet has
    trainer.ema_decay.
    """
    deploy(name, "batch=[4]", "backend=eager")
    folder = deploy.folder
    (code,) = blocks((folder / "card.md").read_text(), "python")
    model = (
        "class model:\n    load_state_dict = staticmethod(lambda state, strict=True: strict and "
        "print('KEYS', sorted(state)))\n"
    )
    check = "import sys\nassert not any(name.split('.')[0] == 'mpx' for name in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{model}{code}{check}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"KEYS {sorted(torch.load(folder / 'checkpoints' / 'last.ckpt')['state_dict'])}\n"
    config = json.loads((folder / "result.json").read_text())["config"]
    served = of_run(folder, config, None)
    monkeypatch.chdir(folder)
    plain = build(config["model"], served.data.spec)
    exec(code, {"model": plain})
    for key, value in served.model.state_dict().items():
        assert torch.equal(plain.state_dict()[key], value), key


def carded(folder, content, *rows):
    content["config"].setdefault("model", {})
    (folder / "deploy.json").write_text(json.dumps({"rows": rows or [deployed_row(test_samples=360)]}))
    return card(folder, content)


def test_transformers_own_network_computes_what_is_served_of_texts_that_begin_with_padding(tmp_path):
    """The positions of GPT-2 would begin with the padding."""
    content = record()
    content["config"] |= {"model": {"family": "hf"}, "data": {"kind": "text"}}
    (code,) = blocks(carded(tmp_path, content), "python")
    torch.manual_seed(0)
    kwargs = {"n_embd": 32, "n_layer": 1, "n_head": 2}
    settings = {
        "family": "hf",
        "inputs": ["image", "text", "lm"],
        "name": "gpt2",
        "pretrained": None,
        "kwargs": kwargs,
    }
    served = build(settings, Spec("text", (12,), 3, vocab_size=50, pad_id=0, padded=True, left=True)).eval()
    plain = GPT2ForSequenceClassification(served.config).eval()
    plain.load_state_dict(served.state_dict())
    x, pad_id = torch.randint(1, 50, (3, 12)), 0
    x[1, :5] = 0
    mask = eval(re.search(r"mask = (.*?)\. If", code)[1], {"x": x, "pad_id": pad_id})
    positions = eval(re.search(r"position_ids=(.*)$", code, re.MULTILINE)[1], {"mask": mask})
    with torch.no_grad():
        torch.testing.assert_close(plain(x, attention_mask=mask, position_ids=positions).logits, served(x))


def test_a_language_model_has_a_perplexity(tmp_path):
    content = record()
    content["metrics"] = {"test/accuracy": 0.2, "test/perplexity": 65.6}
    row = deployed_row(metrics={"test/perplexity": 65.9}, metric={"name": "test/perplexity", "goal": "min"})
    text = carded(tmp_path, content, row)
    assert "test perplexity after training: 65.6000." in text
    assert "| 65.9000 |" in text


def test_every_data_set_has_a_licence():
    assert set(LICENCES) == set(SETS) == {path.stem for path in CONF.glob("*.yaml")}
