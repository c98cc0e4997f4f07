"""Text classification: reading tables, tokenizers and their cache, SST-2 on the real files."""

import warnings

import pytest
import torch

import mpx.data
from mpx.data import tokenizer
from mpx.errors import UserError

WORDS = ["good film", "bad film", "Good, very GOOD plot", 'a "bad" plot', "dull and bad", "fine and good"]


@pytest.fixture
def table(tmp_path):
    """Write a file and return its path."""

    def write(content: str, name: str = "rows.csv") -> str:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def rows(table):
    """A file of 60 rows with two classes."""
    lines = [
        f'"{text.replace(chr(34), chr(34) * 2)} {i}",{"pos" if "ood" in text else "neg"}'
        for i, text in enumerate(WORDS * 10)
    ]
    return table("text,label\n" + "\n".join(lines) + "\n")


def csv_config(config, path, **more):
    return config("text_csv", **{"path": path, "batch_size": 2, "seq_len": 8, "vocab_size": 300, **more})


@pytest.mark.slow
def test_sst2_real_files(config, real, session_cache):
    cfg = config("sst2", root=str(real("sst2").parent), vocab_size=2000, cache=session_cache)
    data = mpx.data.load(cfg)
    assert data.sizes == {"train": 67_349, "val": 872, "test": 1_821}
    assert data.spec.shape == (64,)
    assert (data.spec.classes, data.spec.vocab_size, data.spec.pad_id) == (2, 2000, 0)
    assert data.test.labels.float().mean() == pytest.approx(909 / 1821)  # as published
    assert data.train.ids[:, 0].unique().tolist() == [2]  # [CLS]
    assert ((data.train.ids == 3).sum(1) == 1).all()  # [SEP]
    again = mpx.data.load(cfg)
    assert all(torch.equal(getattr(data, s).ids, getattr(again, s).ids) for s in data.sizes)


def test_quotes_in_a_tsv_are_text(config, table):
    path = table('sentence\tlabel\n"unbalanced\t1\nfine "here\t0\n' * 1 + "and more\t1\n" * 10, "rows.tsv")
    data = mpx.data.load(csv_config(config, path, text_column="sentence"))
    assert sum(data.sizes.values()) == 12


def test_split_of_one_file_is_stratified_fixed_and_disjoint(config, rows):
    first, second = (mpx.data.load(csv_config(config, rows, tokenizer="bpe", seq_len=24)) for _ in range(2))
    assert first.sizes == {"train": 48, "val": 6, "test": 6}
    for name in first.sizes:
        assert torch.bincount(getattr(first, name).labels).tolist() == [first.sizes[name] // 2] * 2
        assert torch.equal(getattr(first, name).ids, getattr(second, name).ids)
    seen = [tuple(row) for s in (first.train, first.val, first.test) for row in s.ids.tolist()]
    assert len(set(seen)) == 60


def test_own_validation_and_test_files(config, rows, table):
    other = table("text,label\ngood,pos\nbad,neg\n", "other.csv")
    both = mpx.data.load(csv_config(config, rows, val_path=other, test_path=other))
    assert both.sizes == {"train": 60, "val": 2, "test": 2}
    assert mpx.data.load(csv_config(config, rows, test_path=other)).sizes == {
        "train": 54,
        "val": 6,
        "test": 2,
    }


def test_cache_is_used_and_a_damaged_one_is_made_again(config, rows, tmp_path, monkeypatch):
    cfg = csv_config(config, rows)
    first = mpx.data.load(cfg)
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-7]):
        path.write_bytes(damaged)
        assert torch.equal(mpx.data.load(cfg).train.ids, first.train.ids)
        assert path.read_bytes() == whole

    def never(*_):
        raise AssertionError("trained although cached")

    monkeypatch.setattr(tokenizer, "encode_trained", never)
    assert torch.equal(mpx.data.load(cfg).train.ids, first.train.ids)
    with pytest.raises(AssertionError, match="trained although cached"):
        mpx.data.load(csv_config(config, rows, tokenizer="bpe"))


def test_texts_that_were_trained_on_are_said(config, rows, table, capsys):
    mpx.data.load(csv_config(config, rows))
    assert not capsys.readouterr().err
    mpx.data.load(csv_config(config, rows, test_path=rows))
    assert (
        f"data file {rows}: 54 of 60 test texts are train texts, too, so the test results are better"
        in capsys.readouterr().err
    )
    mpx.data.load(csv_config(config, table("text,label\n" + "good,pos\nbad,neg\n" * 10, "repeated.csv")))
    assert capsys.readouterr().err.count("2 of 2 ") == 2


def test_existing_tokenizer_from_a_folder(config, rows, tmp_path):
    from safetensors import safe_open
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    own = mpx.data.load(csv_config(config, rows))
    with safe_open(next((tmp_path / "cache").iterdir()), framework="pt") as file:
        plain = Tokenizer.from_str(file.metadata()["tokenizer"])
    plain.no_padding()
    plain.no_truncation()
    PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]").save_pretrained(tmp_path / "mine")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        data = mpx.data.load(csv_config(config, rows, tokenizer=str(tmp_path / "mine")))
    assert data.spec == own.spec
    assert torch.equal(data.train.ids, own.train.ids)


@pytest.mark.parametrize("kind", ["bpe", "folder"])
def test_a_labelled_word_has_the_tokens_that_it_has_within_a_text(config, table, tmp_path, kind):
    """In byte pairs a space belongs to the word after it."""
    from transformers import RobertaTokenizerFast

    texts = [f"film{i % 7} was good" for i in range(60)]
    byte_pairs = tokenizer.train_bpe(
        texts,
        300,
        special=["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "folder" else tokenizer.SPECIAL,
    )
    if kind == "folder":
        byte_pairs.model.save(str(tmp_path))
        RobertaTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path / "byte_pairs")
    words = table("text,label\n" + "".join(f"{text},A B C\n" for text in texts))
    chosen = "bpe" if kind == "bpe" else str(tmp_path / "byte_pairs")
    data = mpx.data.load(csv_config(config, words, task="tokens", tokenizer=chosen, seq_len=16))
    for ids, labels in zip(data.val.ids, data.val.labels, strict=True):
        begins = [byte_pairs.id_to_token(number) for number in ids[labels >= 0].tolist()]
        assert begins[1:] == ["Ġwas", "Ġgood"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "words,label\nx,1\n",
            r"line 1: no column 'text' among words, label: correct the header",
        ),
        ("text,label\nx,1\ny,\n", r"line 3: the label is empty: fill it or remove the line"),
        (
            "text,label\nx,1\ny, and z,2\n",
            r"line 3: 3 columns where the header has 2 \(text, label\): "
            r"correct that line",
        ),
        ('text,label\n"two\nlines",1\nx\n', r"line 4: 1 column "),
        ("text,label\n" + "x,1\n" * 20, r"has one class only \(1\): two or more are needed"),
    ],
)
def test_wrong_rows_are_reported_with_their_line(config, table, content, message):
    with pytest.raises(UserError, match=rf"^data file .*rows\.csv,? {message}") as caught:
        mpx.data.load(csv_config(config, table(content)))
    assert "\n" not in str(caught.value)


def test_a_label_that_the_train_split_lacks(config, rows, table):
    other = table("text,label\nx,poss\n", "other.csv")
    with pytest.raises(
        UserError,
        match=r"has the label 'poss', which no train row has: use one of neg, "
        r"pos\. Did you mean pos\?",
    ):
        mpx.data.load(csv_config(config, rows, val_path=other, test_path=other))
