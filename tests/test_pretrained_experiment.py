"""experiments/pretrained: it runs here at a tiny size, and its card has the verdict of its table."""

import shutil
from collections import Counter
from types import SimpleNamespace

import experiment
import made_data
import pytest
from documents import text
from few_steps import FEW_STEPS
from processes import Fork
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from mpx.compare.__main__ import main as compare
from mpx.compare.table import read_results
from mpx.render.table import escaped

HERE = experiment.EXPERIMENTS / "pretrained"


@pytest.fixture
def script():
    return experiment.script("pretrained/run.py")


def test_the_card_has_the_verdicts_of_its_tables():
    rising, plain = experiment.script("card.py").compare_file(HERE / "results.csv", {}).groups
    assert "schedule.restart" in rising.changes
    assert len(plain.rows) == 8
    for group in (rising, plain):
        assert group.rows[0].setting == "fp32-dense"
        assert escaped(group.train_verdict) in text(HERE / "README.md")
        assert all(f"{row.metric.mean:.4f}" in text(HERE / "README.md") for row in group.rows)


def test_no_row_names_a_folder_of_the_machine():
    words = " ".join(str(run.environment) for run in read_results(HERE / "results.csv"))
    assert not [word for word in words.replace("'", " ").replace("=", " ").split() if word.startswith("/")]


@pytest.mark.slow
def test_a_tiny_model(script, tmp_path, monkeypatch):
    """A folder with random weights, as save_pretrained writes it. The sweeps are forks."""
    own = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    words = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate([*own.values(), "a", "fine", "dull", "film"])}, "[UNK]"
        )
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, **own).save_pretrained(tmp_path / "tiny")
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    BertModel(BertConfig(vocab_size=80, **small)).save_pretrained(tmp_path / "tiny")
    made_data.sst2(tmp_path / "data")
    (tmp_path / "out").mkdir()
    shutil.copy(HERE / "README.md", tmp_path / "out")

    def run(command, cwd):
        assert cwd == tmp_path
        if "mpx.compare" not in command:
            return SimpleNamespace(returncode=Fork(*command[3:], folder=tmp_path).wait())
        monkeypatch.setattr(script.sys, "argv", ["mpx.compare", *command[3:]])
        compare()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(script, "SMALL", ["study=pretrained", "seed=0,1", "data.seq_len=8", *FEW_STEPS])
    monkeypatch.setattr(script.subprocess, "run", run)
    folders = [str(tmp_path / name) for name in ("tiny", "data")]
    monkeypatch.setattr(
        script.sys,
        "argv",
        ["run.py", *folders, "--out", f"{tmp_path}/out", "--outputs", f"{tmp_path}/outputs"],
    )
    script.main()
    runs = read_results(tmp_path / "out" / "results.csv")
    assert Counter((run.sparsity, run.changes.get("sparsity.recipe")) for run in runs) == {
        ("dense", None): 2,
        ("2of4", "from_start"): 2,
    }
    assert {run.changes["model.pretrained"] for run in runs} == {"tiny"}
    assert "bert\\_small on sst2" in text(tmp_path / "out" / "README.md")
