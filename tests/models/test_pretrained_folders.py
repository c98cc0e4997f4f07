"""Pretrained folders through the front door: their own tokenizer, another one on request, and damage in one
line.
"""

import shutil

import pytest
import torch
from few_steps import FEW_STEPS
from made_data import text_csv
from safetensors.torch import load_file, save_file
from started import start
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from mpx.deploy.__main__ import main as deploy

EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
WORDS = ["a", "good", "bad", "thing", *map(str, range(60))]


def words(*special):
    made = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*special, *WORDS])}, unk_token=special[0])
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A BERT with its tokenizer, a GPT-2 whose tokenizer has no padding token, and texts."""
    folder = tmp_path_factory.mktemp("pretrained")
    own = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=words(*own.values()), **own).save_pretrained(folder / "bert")
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 16,
    }
    BertForSequenceClassification(BertConfig(vocab_size=80, **small)).save_pretrained(folder / "bert")
    PreTrainedTokenizerFast(
        tokenizer_object=words("<unk>", "<eos>"), unk_token="<unk>", eos_token="<eos>"
    ).save_pretrained(folder / "gpt2")
    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(vocab_size=72, bos_token_id=1, eos_token_id=1, **size)).save_pretrained(
        folder / "gpt2"
    )
    text_csv(folder / "rows.csv")
    (folder / "text.txt").write_text("a good thing 1 and a bad thing 2\n" * 400)
    return folder


@pytest.fixture(scope="module")
def tuned(folders):
    """(folder, accuracy at its training) of the BERT, tuned in transformers to tell good things from bad,
    saved with its tokenizer.
    """
    own, model = (
        AutoTokenizer.from_pretrained(folders / "bert"),
        BertForSequenceClassification.from_pretrained(folders / "bert"),
    )
    made = [f"a {word} thing {i}" for i in range(60) for word in ("bad", "good")]
    batch, labels = own(made, padding="max_length", max_length=8, return_tensors="pt"), torch.arange(120) % 2
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(40):
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    model.save_pretrained(folders / "tuned")
    own.save_pretrained(folders / "tuned")
    return folders / "tuned", float((model(**batch).logits.argmax(1) == labels).float().mean())


def texts(folders, model):
    return [
        "data=text_csv",
        f"data.path={folders}/rows.csv",
        "data.seq_len=8",
        f"model.pretrained={model}",
        *FEW_STEPS,
    ]


@pytest.mark.parametrize("model", ["hf", "bert_small"])
def test_a_pretrained_model_brings_its_tokenizer(train, folders, model):
    ran = train(f"model={model}", *texts(folders, folders / "bert"))
    assert ran.code == 0, ran.err
    assert "Loading weights" not in ran.out + ran.err
    assert ran.record["config"]["data"]["tokenizer"] == str(folders / "bert")
    assert "tokenizer" not in ran.folder.parent.name


def test_a_tuned_folder_is_as_accurate_as_at_its_training(train, folders, tuned):
    """With its own tokenizer, which another order of its words would spoil."""
    folder, accuracy = tuned
    held_still = ["optimizer.lr=1e-9", "trainer.limit_test_batches=1.0"]
    ran = train("model=hf", *texts(folders, folder), *held_still)
    assert ran.code == 0, ran.err
    assert accuracy == 1
    assert ran.record["metrics"]["test/accuracy"] >= accuracy


def test_a_tuned_folder_whose_classes_have_another_order_is_refused(train, folders, tuned, tmp_path):
    """The data's have that of their names, so that they would meet each other's rows of its classifier."""
    turned = BertForSequenceClassification.from_pretrained(tuned[0])
    turned.config.id2label, turned.config.label2id = {0: "yes", 1: "no"}, {"yes": 0, "no": 1}
    turned.save_pretrained(tmp_path / "turned")
    AutoTokenizer.from_pretrained(tuned[0]).save_pretrained(tmp_path / "turned")
    ran = train("model=hf", *texts(folders, tmp_path / "turned"))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "has the classes yes, no, and the data no, yes: name them so that both sort alike." in ran.err


@pytest.mark.parametrize("model", ["hf", "bert_small"])
def test_weights_that_were_saved_in_16_bits_train_in_fp32(train, folders, tmp_path, model):
    """transformers would leave them in the format of the file."""
    shutil.copytree(folders / "bert", tmp_path / "half")
    BertForSequenceClassification.from_pretrained(folders / "bert").bfloat16().save_pretrained(
        tmp_path / "half"
    )
    ran = train(f"model={model}", *texts(folders, tmp_path / "half"))
    assert ran.code == 0, ran.err
    assert {weight.dtype for weight in weights(ran).values()} == {torch.float32}


def test_pruned_then_tuned_then_exported(train, folders, tmp_path, monkeypatch):
    """The masks are those of the pretrained weights, and their zeros reach transformers."""
    ran = train(
        "model=hf",
        *texts(folders, folders / "bert"),
        "sparsity=2of4",
        "sparsity.recipe=from_start",
        'sparsity.skip=["*pooler*"]',
    )
    assert ran.code == 0, ran.err
    before, after, layers = (
        load_file(folders / "bert" / "model.safetensors"),
        weights(ran),
        ran.record["sparsity"]["layers"],
    )
    pruned = {layer["name"] for layer in layers if layer["pruned"]}
    assert pruned == {name for name in before if "encoder" in name and before[name].dim() == 2}
    for name in pruned:
        four = before[name].abs().reshape(-1, 4)
        kept = torch.zeros_like(four).scatter(1, four.topk(2).indices, 1).reshape(before[name].shape).bool()
        assert torch.equal(after[name] != 0, kept), name
        assert not torch.equal(after[name], before[name] * kept)  # tuned
    assert {layer["name"]: layer["reason"] for layer in layers if not layer["pruned"]} == {
        "bert.pooler.dense.weight": "in sparsity.skip",
        "classifier.weight": "2×32 is not a sparse Tensor Core shape (rows % 8, columns % 16)",
    }
    assert all(
        after[name].count_nonzero() > 0.9 * after[name].numel()
        for name in ("bert.pooler.dense.weight", EMBEDDINGS)
    )
    monkeypatch.setattr("mpx.deploy.backends.BUDGET_S", 0.02)
    served = start(
        deploy,
        tmp_path,
        f'run="{ran.folder}"',
        "accelerator=cpu",
        "backend=eager",
        "batch=[2]",
        "export=safetensors",
    )
    assert served.code == 0, served.err
    loaded, about = AutoModelForSequenceClassification.from_pretrained(
        ran.folder / "served" / "fp32-auto-cpu", output_loading_info=True
    )
    assert not any(about.values())
    assert type(loaded) is BertForSequenceClassification
    assert all(torch.equal(weight, after[name]) for name, weight in loaded.state_dict().items())


def weights(ran):
    """Those of the run's end."""
    return torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def test_another_tokenizer_is_refused(train, folders):
    for kind, family in (("wordpiece", "hf"), ("bpe", "bert_small")):
        ran = train(f"model={family}", *texts(folders, folders / "bert"), f"data.tokenizer={kind}")
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert (
            f"data.tokenizer={kind} is trained on this data, and its token ids mean nothing to the "
            f"pretrained {folders}/bert. Leave" in ran.err
        )


def test_language_modelling_takes_the_tokenizer_of_the_folder(train, folders):
    words = [
        "model=hf",
        f"model.pretrained={folders}/gpt2",
        "data=text_file",
        f"data.path={folders}/text.txt",
        "data.seq_len=8",
    ]
    ran = train(*words, "data.batch_size=8", *FEW_STEPS)
    assert ran.code == 0, ran.err
    assert ran.record["config"]["data"]["tokenizer"] == f"{folders}/gpt2"
    ran = train("model=hf", f"model.pretrained={folders}/gpt2", "data=wikitext2", "data.root=.")
    assert ran.err.startswith(
        f"error: model.pretrained={folders}/gpt2 with data=wikitext2, whose tokens "
        "are words of its own. Use data="
    )


def test_damage_is_one_line(train, folders, tmp_path):
    shutil.copytree(folders / "bert", tmp_path / "bert")
    file = tmp_path / "bert" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    ran = train("model=hf", *texts(folders, tmp_path / "bert"))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "its weights are damaged or cut off (" in ran.err


def renamed(file):
    """Weights under the name that a larger model of the user's gives them."""
    save_file(
        {f"net.{name}": weight for name, weight in load_file(file).items()}, file, metadata={"format": "pt"}
    )


@pytest.mark.parametrize(
    ("model", "change", "more", "lacking"),
    [
        ("bert", renamed, [], "21 of 25, such as bert.embeddings.LayerNorm.bias,"),
        (
            "bert",
            None,
            ["+model.kwargs.num_hidden_layers=2"],
            "16 of 41, such as bert.encoder.layer.1.attention.output.LayerNorm.bias,",
        ),
    ],
)
def test_random_weights_are_not_called_pretrained(train, folders, tmp_path, model, change, more, lacking):
    shutil.copytree(folders / model, tmp_path / model)
    if change:
        change(tmp_path / model / "model.safetensors")
    ran = train(
        "model=hf",
        *texts(folders, tmp_path / model),
        *(word.replace("{folders}", str(folders)) for word in more),
    )
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert (
        f"model.pretrained={tmp_path}/{model} lacks some of the network's weights: {lacking} would be "
        "random. Leave out"
    ) in ran.err
