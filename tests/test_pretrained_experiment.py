"""experiments/pretrained: it runs here at a tiny size, and its card has the verdict of its table."""

import shutil
from collections import Counter
from types import SimpleNamespace

import documents
import experiment
import made_data
import numpy as np
import pytest
from documents import text
from few_steps import FEW_STEPS
from processes import Fork
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from mpx.compare.__main__ import main as compare
from mpx.compare.results import read_results
from mpx.render.card import DEFAULTS, compare_file
from mpx.render.table import escaped

HERE = experiment.EXPERIMENTS / "pretrained"


@pytest.fixture
def script():
    return experiment.script("pretrained/run.py")


def test_the_card_has_the_verdicts_of_its_tables():
    rising, plain = compare_file(HERE / "results.csv", DEFAULTS).groups
    assert "schedule.restart" in rising.changes
    assert len(plain.rows) == 8
    for group in (rising, plain):
        assert group.rows[0].setting == "fp32-dense"
        assert escaped(group.train_verdict) in text(HERE / "README.md")
        assert all(f"{row.metric.mean:.4f}" in text(HERE / "README.md") for row in group.rows)


def test_what_the_card_says_of_each_recipe():
    """In points, paired by seed with runs of the same format; (mean, low, high) of FP32 and BF16."""
    runs, card = {}, " ".join(text(HERE / "README.md").split()).replace("−", "-")
    for run in read_results(HERE / "results.csv"):
        dense = "rising" if "schedule.restart" in run.changes else "dense"
        recipe = run.changes.get("sparsity.recipe", "asp" if run.sparsity == "2of4" else dense)
        runs.setdefault((run.precision, recipe), {})[run.seed] = 100 * run.metrics["test/accuracy"]
    assert {len(seeds) for seeds in runs.values()} == {5}

    def lost_beside(precision, other, recipe):
        change = [runs[precision, other][seed] - accuracy for seed, accuracy in runs[precision, recipe].items()]
        half = stats.sem(change) * stats.t.ppf(0.975, len(change) - 1)
        return np.mean(change), np.mean(change) - half, np.mean(change) + half

    lost = {}
    for recipe in ("from_start", "asp", "sr_ste", "rising"):
        for precision in ("fp32", "amp_bf16"):
            found = lost_beside(precision, "dense", recipe)
            lost.setdefault(recipe, {})[precision] = tuple(f"{value:.1f}" for value in found)
            assert found[1] < 1 < found[2] or recipe == "rising"
            assert found[1] < 0 < found[2] or recipe != "rising"
    for recipe in ("from_start", "asp"):
        mean, low, high = (sorted(values) for values in zip(*lost[recipe].values(), strict=True))
        assert f"loses {mean[0]} to {mean[1]}" in card
        assert f"{low[0]} to {high[1]}" in card
        assert f"{mean[0]} to {mean[1]}" in text(documents.ROOT / "docs" / "sparsity.md")
    less = [lost_beside(precision, "asp", "from_start") for precision in ("fp32", "amp_bf16")]
    assert "by {:.1f} points in FP32 ({:.1f} to {:.1f}) and {:.1f} in BF16 ({:.1f} to {:.1f})".format(*less[0], *less[1]) in card
    both = "{} in FP32 ({} to {}), and {} in BF16 ({} to {})".format(*lost["sr_ste"]["fp32"], *lost["sr_ste"]["amp_bf16"])
    assert f"`sr_ste` loses {both}" in card
    assert {mean for mean, *_ in lost["rising"].values()} == {"0.2"}
    assert "are 0.2 points below the other dense runs, which may be chance" in card
    beside = [lost_beside(precision, "rising", "asp") for precision in ("fp32", "amp_bf16")]
    said = "`asp` loses {:.1f} points in FP32 ({:.1f} to {:.1f}) and {:.1f} in BF16 ({:.1f} to {:.1f})".format(*beside[0], *beside[1])
    assert f"beside them {said}: less than a point in FP32, in one of many comparisons that no plan named" in card
    assert beside[0][2] < 1 < beside[1][2]
    fair = sorted(mean for mean, *_ in beside)
    assert "beside dense runs whose rate does so, too, {:.1f} to {:.1f}.".format(*fair) in text(documents.ROOT / "docs" / "sparsity.md")
    assert f"(means lie {fair[0]:.1f} to {lost['from_start']['fp32'][0]} points lower)" in text(documents.ROOT / "README.md")


def test_what_the_card_says_of_graphs():
    found = {(run.changes["trainer.cuda_graphs"], run.seed): run for run in read_results(HERE / "graphs.csv")}
    (graphed, plain), card = (found[way, 0] for way in ("true", "false")), " ".join(text(HERE / "README.md").split())
    alone = [run for run in read_results(HERE / "results.csv") if run.precision == "amp_bf16" and run.exclusive]
    for recipe, said in (("sr_ste", "it took {:.1f} ms a step in BF16"), ("from_start", "where fixed masks take {:.1f}")):
        assert said.format(np.mean([run.step_ms_p50 for run in alone if run.changes.get("sparsity.recipe") == recipe])) in card
    assert f"on the second host {graphed.step_ms_p50:.1f} ms in place of {plain.step_ms_p50:.1f}" in card
    assert graphed.metrics["val/loss"] == plain.metrics["val/loss"]
    page = " ".join(text(documents.ROOT / "docs" / "sparsity.md").split())
    assert f"takes {graphed.step_ms_p50:.1f} ms so, and {plain.step_ms_p50:.1f} without a graph" in page


def test_no_row_names_a_folder_of_the_machine():
    assert not [word for word in text(HERE / "results.csv").replace('"', " ").replace("=", " ").split() if word.startswith("/")]


def test_words_of_mpx_may_follow_an_option(script, monkeypatch):
    monkeypatch.setattr("sys.argv", ["run.py", "MODEL", "DATA", "--whole", "precision=amp_bf16", "--out", "FOLDER", "seed=0"])
    given = script.options()
    assert (given.whole, str(given.out), given.more) == (True, "FOLDER", ["precision=amp_bf16", "seed=0"])


@pytest.mark.slow
def test_a_tiny_model(script, tmp_path, monkeypatch):
    """A folder with random weights, as save_pretrained writes it. The sweeps are forks."""
    own = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*own.values(), "a", "fine", "dull", "film"])}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, **own).save_pretrained(tmp_path / "tiny")
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
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
    monkeypatch.setattr(script.sys, "argv", ["run.py", *folders, "--out", f"{tmp_path}/out", "--outputs", f"{tmp_path}/outputs"])
    script.main()
    runs = read_results(tmp_path / "out" / "results.csv")
    assert Counter((run.sparsity, run.changes.get("sparsity.recipe")) for run in runs) == {("dense", None): 2, ("2of4", "from_start"): 2}
    assert {run.changes["model.pretrained"] for run in runs} == {"tiny"}
    assert "bert\\_small on sst2" in text(tmp_path / "out" / "README.md")
