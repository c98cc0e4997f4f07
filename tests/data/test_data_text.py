"""Text classification: reading tables, tokenizers and their cache, SST-2 on the real files."""

import json
import warnings

import pytest
import torch
from processes import Fork

import mpx.data
from mpx.data import encode, tokenizer
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
    lines = [f'"{text.replace(chr(34), chr(34) * 2)} {i}",{"pos" if "ood" in text else "neg"}' for i, text in enumerate(WORDS * 10)]
    return table("text,label\n" + "\n".join(lines) + "\n")


def csv_config(config, path, **more):
    return config("text_csv", **{"path": path, "batch_size": 2, "seq_len": 8, "vocab_size": 300, **more})


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
    assert mpx.data.load(csv_config(config, rows, test_path=other)).sizes == {"train": 54, "val": 6, "test": 2}


def test_wordpiece_is_lowercase_padded_and_cut(config, rows):
    data = mpx.data.load(csv_config(config, rows))
    ids = data.train.ids
    assert ids.dtype == torch.int32
    assert (ids[:, 0] == 2).all()
    assert ids.max() < data.spec.vocab_size
    lengths = (ids != 0).sum(1)
    assert lengths.max() == 8
    for row, length in zip(ids, lengths.tolist(), strict=True):
        assert row[length - 1] == 3
        assert (row[length:] == 0).all()


def test_tokenizer_is_trained_on_the_train_split_only(config, rows, table):
    other = table("text,label\nzzyzx \N{SNOWMAN} film,pos\n", "other.csv")
    data = mpx.data.load(csv_config(config, rows, val_path=other, test_path=other))
    assert 1 in data.val.ids, "a sign that only the validation split has is unknown"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_two_processes_at_once_make_the_same_tokenizer_and_one_whole_file(config, rows, kind, tmp_path):
    cfg = csv_config(config, rows, tokenizer=kind)
    mpx.data.load(cfg)
    mine = next((tmp_path / "cache").iterdir())
    (program := tmp_path / "loads.py").write_text(f"import mpx.data; mpx.data.load({ {**cfg, 'cache': str(tmp_path / 'second')}!r})")
    both = [Fork(folder=tmp_path, script=program) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0], [process.err for process in both]
    (theirs,) = (tmp_path / "second").iterdir()
    assert theirs.name == mine.name
    assert theirs.read_bytes() == mine.read_bytes()


def test_wordpiece_has_every_letter_and_four_special_tokens():
    texts = ["good films", "bad films, good plots"] * 5
    made = [tokenizer.train_wordpiece(texts, 100) for _ in range(5)]
    assert len({one.to_str() for one in made}) == 1
    vocabulary = made[0].get_vocab()
    assert [vocabulary[name] for name in tokenizer.SPECIAL] == [0, 1, 2, 3]
    assert {"g", "##o", "f", ",", "##s"} <= set(vocabulary)
    assert "##f" not in vocabulary
    assert len(json.loads(made[0].to_str())["added_tokens"]) == 4
    assert made[0].encode("GOOD films!").tokens == ["good", "films", "[UNK]"]
    assert made[0].decode(made[0].encode("bad soil").ids) == "bad soil"


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

    monkeypatch.setattr(encode, "encode_trained", never)
    assert torch.equal(mpx.data.load(cfg).train.ids, first.train.ids)
    with pytest.raises(AssertionError, match="trained although cached"):
        mpx.data.load(csv_config(config, rows, tokenizer="bpe"))


def test_a_cache_is_of_its_texts_and_of_the_version_of_the_library(monkeypatch):
    keys = {tokenizer.cache_key({"vocab_size": 9}, texts) for texts in (["a", "bc"], ["ab", "c"], ["a\0b", "c"])}
    monkeypatch.setattr(tokenizer, "version", lambda name: "0.1")
    keys.add(tokenizer.cache_key({"vocab_size": 9}, ["a", "bc"]))
    assert len(keys) == 4


def test_a_cached_part_is_not_taken_for_another_of_its_size(config, rows, table):
    other = table("text,label\n" + "other film,pos\nother plot,neg\n" * 3, "other.csv")  # a tenth of 60 rows, which the other part has
    tested, validated = (mpx.data.load(csv_config(config, rows, **{key: other})) for key in ("test_path", "val_path"))
    assert torch.equal(validated.val.ids, tested.test.ids)
    assert torch.equal(validated.test.ids, tested.val.ids)


def test_texts_that_were_trained_on_are_said(config, rows, table, capsys):
    mpx.data.load(csv_config(config, rows))
    assert not capsys.readouterr().err
    mpx.data.load(csv_config(config, rows, test_path=rows))
    assert f"data file {rows}: 54 of 60 test texts are train texts, too, so the test results are better" in capsys.readouterr().err
    mpx.data.load(csv_config(config, table("text,label\n" + "good,pos\nbad,neg\n" * 10, "repeated.csv")))
    assert capsys.readouterr().err.count("2 of 2 ") == 2


def test_a_cache_that_cannot_be_written_is_a_warning(config, rows, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match=r"^data\.cache: cannot write to .* \(.*\), so the tokenizer is trained again") as caught:
        data = mpx.data.load(csv_config(config, rows, cache=str(tmp_path / "file" / "below")))
    assert len(caught) == 1
    assert len(data.train) == 48


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
        texts, 300, special=["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "folder" else tokenizer.SPECIAL
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


def test_a_tokenizer_that_does_not_tell_words_apart(config, table, tmp_path):
    from transformers import CTRLTokenizer

    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "<pad>": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    CTRLTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt", pad_token="<pad>").save_pretrained(tmp_path / "slow")
    words = table("text,label\n" + "a b,X Y\n" * 20)
    with pytest.raises(UserError, match=r"slow does not tell of which word a token is, and data\.task=tokens needs that\. Choose one with"):
        mpx.data.load(csv_config(config, words, task="tokens", tokenizer=str(tmp_path / "slow")))


def test_a_tokenizer_that_is_not_there(config, rows, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"^data\.tokenizer=/none/such cannot be loaded \(.*\): choose wordpiece, bpe, a folder"):
        mpx.data.load(csv_config(config, rows, tokenizer="/none/such"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("words,label\nx,1\n", r"line 1: no column 'text' among words, label: correct the header, or for data=text_csv"),
        ("", r"line 1: no column 'text' among no columns"),
        ("text,label,label\nx,1,2\n", r"line 1: 2 column 'label' among text, label, label"),
        ("text,label\n", r"has no rows below its header"),
        ("text,label\nx,1\ny,\n", r"line 3: the label is empty: fill it or remove the line"),
        ("text,label\nx,1\n ,2\n", r"line 3: the text is empty"),
        ("text,label\nx,1\ny, and z,2\n", r"line 3: 3 columns where the header has 2 \(text, label\): correct that line"),
        ("text,label\nx\n", r"line 2: 1 column where the header has 2"),
        ('text,label\n"two\nlines",1\nx\n', r"line 4: 1 column "),
        ('text,label\n"open,1\n', r"line 2: unexpected end of data: correct that line"),
        ("text,label\n" + "x,1\n" * 20, r"has one class only \(1\): two or more are needed"),
    ],
)
def test_wrong_rows_are_reported_with_their_line(config, table, content, message):
    with pytest.raises(UserError, match=rf"^data file .*rows\.csv,? {message}") as caught:
        mpx.data.load(csv_config(config, table(content)))
    assert "\n" not in str(caught.value)


def test_a_label_that_the_train_split_lacks(config, rows, table):
    other = table("text,label\nx,poss\n", "other.csv")
    with pytest.raises(UserError, match=r"has the label 'poss', which no train row has: use one of neg, pos\. Did you mean pos\?"):
        mpx.data.load(csv_config(config, rows, val_path=other, test_path=other))


def test_rows_that_are_too_few_to_split(config, table):
    with pytest.raises(UserError, match=r"^data\.path: .* has 2 rows, too few to split"):
        mpx.data.load(csv_config(config, table("text,label\na,1\nb,2\n")))


def test_sst2_without_labels_says_so(config, tmp_path):
    where = tmp_path / "root" / "sst2"
    where.mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (where / name).write_text("sentence\tlabel\n" + "good\t1\nbad\t0\n" * 40)
    with pytest.raises(UserError, match=r"test_labelled_glue_style\.tsv \(or test\.tsv\) is missing"):
        mpx.data.load(config("sst2", download=False))
    (where / "test.tsv").write_text("index\tsentence\n0\tgood\n")
    with pytest.raises(UserError, match=r"test\.tsv, line 1: no column 'label' among index, sentence"):
        mpx.data.load(config("sst2", download=False))
    (where / "test.tsv").write_text("sentence\tlabel\ngood\t1\n")
    assert mpx.data.load(config("sst2", download=False, vocab_size=100)).sizes == {"train": 80, "val": 80, "test": 1}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seq_len", 2, r"^data\.seq_len=2 must be at least 3 for data=text_csv"),
        ("vocab_size", 50, r"^data\.vocab_size=50 must be at least 100 and at most 1000000 for data\.tokenizer=wordpiece"),
        ("vocab_size", None, r"^data\.vocab_size=null must be a whole number"),
    ],
)
def test_fields_out_of_range(config, rows, field, value, message):
    cfg = csv_config(config, rows)
    cfg[field] = value
    with pytest.raises(UserError, match=message):
        mpx.data.load(cfg)


@pytest.mark.parametrize(("longest", "padded"), [("", False), (" d", True)])
def test_padded_says_whether_any_text_is_filled_up(config, table, longest, padded):
    path = table("text,label\n" + "".join(f"a b c{longest if row == 19 else ''},{row % 2}\n" for row in range(20)))
    assert mpx.data.load(csv_config(config, path, seq_len=6 if padded else 5)).spec.padded == padded
