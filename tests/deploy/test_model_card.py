"""card.md: what it says of a real run, that its code loads the weights, and that nothing in a record can change its form."""

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_runs import deployed_row, record, write
from started import start
from transformers import GPT2ForSequenceClassification

from mpx.compare.statistics import wilson
from mpx.data import LICENCES, SETS
from mpx.deploy import __main__ as deploy_main
from mpx.deploy.build import trained
from mpx.deploy.card import card
from mpx.models import build
from mpx.spec import Spec

TINY = {"n_embd": 32, "n_layer": 1, "n_head": 2}
CONF = Path(__file__).parents[2] / "conf" / "data"


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_card_of_a_real_run(deploy, tmp_path):
    done, (row,) = deploy("mlp", "batch=[4,64]", "backend=eager")
    assert "deploy.json and card.md" in done.words
    text = (deploy.folder / "card.md").read_text()
    trained = json.loads((deploy.folder / "result.json").read_text())["metrics"]["test/accuracy"]
    low, high = wilson(trained, 360, 0.95)
    assert text.startswith("# mlp on digits, fp32-2of4, seed 0\n")
    assert f"Test accuracy after training: {trained:.4f} ({low:.4f} to {high:.4f}, 95 % confidence, 360 samples)." in text
    assert "Data: digits. Licence: CC BY 4.0 (UCI Machine Learning Repository)." in text
    assert "Sparsity: 2of4, density 0.500 over the pruned layers, verified. Served dense on a CPU: 2:4 kernels need a CUDA device." in text
    assert f"| Dense FP32, eager | {row['environment']['cpu']}, {row['environment']['threads']} thread" in text
    assert f"{row['metrics']['test/accuracy']:.4f}" in text
    assert f"torch {torch.__version__}" in text


@pytest.mark.slow
def test_each_call_writes_the_card_again(deploy):
    deploy("mlp", "batch=[4,64]", "backend=eager")
    deploy("mlp", "batch=[4,64]", "format=int8")
    text = (deploy.folder / "card.md").read_text()
    assert "| Dense FP32, eager |" in text
    assert "| Dense INT8, onnx |" in text


@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet", marks=pytest.mark.slow)])
def test_its_code_loads_the_weights_without_mpx(runs, name):
    """In a fresh process. A stand-in of the model says what it is given; resnet has trainer.ema_decay."""
    folder = runs(name)
    content = json.loads((folder / "result.json").read_text())
    (code,) = blocks(card(folder, content), "python")
    model = "class model:\n    load_state_dict = staticmethod(lambda state, strict=True: strict and print('KEYS', sorted(state)))\n"
    check = "import sys\nassert not any(name.split('.')[0] == 'mpx' for name in sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{model}{code}{check}"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"KEYS {sorted(torch.load(folder / 'checkpoints' / 'last.ckpt')['state_dict'])}\n"
    assert ("averages" in code) == (name == "resnet")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "resnet", "lstm"])
def test_its_code_loads_what_is_served(runs, name, monkeypatch):
    folder = runs(name)
    content = json.loads((folder / "result.json").read_text())
    served = trained(folder, content, None)
    (code,) = blocks(card(folder, content), "python")
    monkeypatch.chdir(folder)
    model = build(content["config"]["model"], served.data.spec)
    exec(code, {"model": model})
    for key, value in served.model.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


def test_transformers_own_network_computes_what_is_served_of_texts_that_begin_with_padding(tmp_path):
    """The positions of GPT-2 would begin with the padding."""
    content = record()
    content["config"] |= {"model": {"family": "hf"}, "data": {"kind": "text"}}
    (code,) = blocks(card(tmp_path, content), "python")
    torch.manual_seed(0)
    settings = {
        "family": "hf",
        "inputs": ["image", "text", "lm"],
        "name": "gpt2",
        "pretrained": None,
        "kwargs": {"n_embd": 32, "n_layer": 1, "n_head": 2},
    }
    served = build(settings, Spec("text", (12,), 3, vocab_size=50, pad_id=0, padded=True, left=True)).eval()
    plain = GPT2ForSequenceClassification(served.config).eval()
    plain.load_state_dict(served.state_dict())
    x, pad_id = torch.randint(1, 50, (3, 12)), 0
    x[1, :5] = 0
    mask = eval(re.search(r"mask = (.*?)\. If", code)[1], {"x": x, "pad_id": pad_id})
    positions = eval(re.search(r"position_ids=(.*)$", code, re.MULTILINE)[1], {"mask": mask})
    with torch.no_grad():
        expected, found = served(x), plain(x, attention_mask=mask, position_ids=positions).logits
        assert not torch.allclose(plain(x, attention_mask=mask).logits, expected, rtol=1e-3)
    torch.testing.assert_close(found, expected)
    content["config"]["model"]["family"] = "bert"
    assert "position_ids" not in card(tmp_path, content)


@pytest.mark.parametrize(
    ("pattern", "device", "said"),
    [("2of4_2d", "cpu", True), ("2of4", "cuda", False), ("unstructured", "cpu", False)],
)
def test_why_a_cpu_serves_2of4_weights_dense(tmp_path, pattern, device, said):
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row(device=device)]}))
    assert ("Served dense on a CPU" in card(tmp_path, record(sparsity=pattern))) is said


def test_exported_files_are_listed(tmp_path):
    files = {"onnx": {"file": "served/fp16-auto-cuda/model.onnx", "bytes": 5}}
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row(exports=files)]}))
    assert "Files:\n\n- served/fp16-auto-cuda/model.onnx\n" in card(tmp_path, record()).replace("\\_", "_")


def test_a_file_is_loaded_by_its_name_alone(tmp_path):
    """The first of each kind; a name is no code."""
    evil = 'served/"); import os; os.mkdir("pwned'
    rows = [deployed_row(exports={"onnx": {"file": name}}) for name in (evil, "second")]
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": rows}))
    (code, _) = blocks(card(tmp_path, record()), "python")
    (call,) = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    assert [argument.value for argument in call.args] == [evil]


@pytest.mark.parametrize(("parts", "named"), [("outputs/s/a/seed0", "outputs/s/a/seed0"), ("else/s/a/seed0", "{here}/else/s/a/seed0")])
def test_the_command_that_measures_again_names_the_folder_as_the_trainings_does(tmp_path, monkeypatch, parts, named):
    """Also for run=. ; a folder that was moved has a whole path."""
    content = record()
    content["config"]["output_dir"] = "outputs"
    (tmp_path / parts).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / parts)
    command, _ = blocks(card(Path("."), content), "bash")
    assert command == f"python -m mpx.deploy run={named.format(here=tmp_path.resolve())}\n"


EIGHT_BITS = ("format=[fp32,int8]", "backend=onnx", "finetune.epochs=0.5")


@pytest.mark.parametrize(
    ("name", "words"),
    [("custom", ("format=fp32", "backend=eager", "weights=[auto,dense]")), pytest.param("mlp", EIGHT_BITS, marks=pytest.mark.slow)],
)
def test_its_command_measures_the_rows_again(deploy, tmp_path, monkeypatch, name, words):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", deploy_main.__spec__)  # as if started by python -m mpx.deploy
    done, before = deploy(name, "batch=[4,1]", *words)
    assert done.code == 0, done.err
    (command,) = blocks((deploy.folder / "card.md").read_text(), "bash")[0].splitlines()
    again = start(deploy_main.main, tmp_path, *shlex.split(command)[3:])
    assert again.code == 0, again.err
    after = json.loads((deploy.folder / "deploy.json").read_text())["rows"]

    def known(row):
        return [row["format"], row["weights"], row["device"], [at["batch"] for at in row["speed"]], (row["finetune"] or {}).get("epochs")]

    assert list(map(known, after)) == list(map(known, before))
    assert all(new["speed"] != old["speed"] for new, old in zip(after, before, strict=True))
    assert command in (deploy.folder / "card.md").read_text()


def measured_by(command, batch=(1, 256), **row):
    row = deployed_row(**row)
    row["environment"]["command"] = command
    for at, size in zip(row["speed"], batch, strict=True):
        at["batch"] = size
    return row


@pytest.mark.parametrize(
    ("rows", "commands"),
    [
        ([], [""]),
        ([measured_by(None)], [" format=fp16 weights=auto 'batch=[1,256]'"]),
        (
            [measured_by("python -m mpx.deploy run=a format=fp16 export=pt2"), measured_by("python -m mpx.deploy run=b", format="int8")],
            [" format=fp16 weights=auto 'batch=[1,256]' export=pt2", " format=int8 weights=auto 'batch=[1,256]'"],
        ),
        (
            [measured_by("python -m mpx.deploy run=a", format=fmt, weights=kind) for fmt in ("fp16", "int8") for kind in ("auto", "2of4")],
            [" 'format=[fp16,int8]' 'weights=[auto,2of4]' 'batch=[1,256]'"],
        ),
        (
            [
                measured_by("python -m mpx.deploy 'finetune={epochs:1}' 'run=\"a=b\"'", format=fmt, weights=kind)
                for fmt, kind in (("fp16", "auto"), ("int8", "auto"), ("int8", "dense"))
            ],
            [
                " format=fp16 weights=auto 'batch=[1,256]'",
                " format=int8 'weights=[auto,dense]' 'batch=[1,256]' 'finetune={epochs:1}'",
            ],
        ),
        (
            [measured_by("python -m mpx.deploy run=a"), measured_by("python -m mpx.deploy run=a", (1, 8), weights="dense")],
            [" format=fp16 weights=auto 'batch=[1,256]'", " format=fp16 weights=dense 'batch=[1,8]'"],
        ),
        ([measured_by("python -m mpx.deploy run=a 'backend=\"a; b\"'")], [" format=fp16 weights=auto 'batch=[1,256]' 'backend=\"a; b\"'"]),
        ([measured_by(other) for other in ("rm -r x y", "python -m mpx.deploy 'open", 7)], [" format=fp16 weights=auto 'batch=[1,256]'"]),
        ([deployed_row(format=["fp16"]), deployed_row(weights="x"), deployed_row(speed=7), deployed_row(speed=[7])], [""]),
    ],
)  # fmt: skip
def test_as_few_commands_as_measure_all_rows(tmp_path, rows, commands):
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": rows}))
    found = blocks(card(tmp_path, record()), "bash")[0].splitlines()
    assert found == [f"python -m mpx.deploy run={tmp_path}{words}" for words in commands]


def test_rows_that_were_served_in_the_same_way_say_what_was_asked_for(tmp_path):
    rows = [deployed_row(), deployed_row(weights="dense"), deployed_row(format="int8")]
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": rows}))
    lines = [line.split(" | ")[0] for line in card(tmp_path, record()).splitlines() if line.startswith("| Dense")]
    assert lines == [
        "| Dense FP16 (format=fp16 weights=auto), graph",
        "| Dense FP16 (format=fp16 weights=dense), graph",
        "| Dense INT8, graph",
    ]


def test_a_language_model_has_a_perplexity(tmp_path):
    content = record()
    content["metrics"] = {"test/accuracy": 0.2, "test/perplexity": 65.6}
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row(metrics={"test/accuracy": 0.2, "test/perplexity": 65.9})]}))
    text = card(tmp_path, content)
    assert "Test perplexity after training: 65.60." in text
    assert "| 65.90 |" in text


@pytest.mark.parametrize(("limit", "known"), [(1.0, True), (0.5, False), (1, False), (8, False)])
def test_an_interval_only_where_the_whole_test_set_was_tested(tmp_path, limit, known):
    """1 is one batch, and 1.0 all of them."""
    content = record()
    content["config"]["trainer"]["limit_test_batches"] = limit
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [deployed_row(test_samples=360)]}))
    assert ("confidence, 360 samples" in card(tmp_path, content)) is known


def test_nothing_in_a_record_can_change_the_form(tmp_path):
    evil = "x```\n# owned\n<script>|[a](b)\x1b[2J"
    content = record()
    content["setting"] |= {"model": evil, "data": [evil], "seed": {}}
    content["config"] = {"data": {"name": evil}, "trainer": None, "model": evil}
    content["metrics"] = {"test/accuracy": evil}
    content["sparsity"] = {"pattern": evil, "density": evil}
    content["environment"] = {"command": evil, "torch": evil}
    rows = [deployed_row(exports={"a": {"file": evil}}, test_samples=evil), deployed_row(exports=evil), deployed_row(format=evil)]
    write(tmp_path, content)
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": rows}))
    text = card(tmp_path, content)
    assert "\x1b" not in text
    assert "<script>" not in re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall("^#+ (.*)", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)[1:] == [
        "Served",
        "How to load it",
        "How it was made",
    ]
    assert len(blocks(text, "bash")) == 2
    for part in ("setting", "config", "metrics", "metric", "sparsity", "environment"):
        assert card(tmp_path, content | {part: evil}).startswith("# ")
    for name in (evil, [evil], "<script>|[a](b)`", 7):
        text = card(tmp_path, content | {"metric": {"name": name, "goal": "max"}})
        assert "<script>" not in re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        (head,) = (line for line in text.splitlines() if line.startswith("| served as"))
        assert len(re.findall(r"(?<!\\)\|", head)) == 8
    assert card(tmp_path, content | {"metric": {"name": "test/f1", "goal": ["max"]}}).startswith("# ")


def test_every_data_set_has_a_licence():
    assert set(LICENCES) == set(SETS) == {path.stem for path in CONF.glob("*.yaml")}
