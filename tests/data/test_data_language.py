import pytest
import torch

import mpx.data
from mpx.data import language
from mpx.data.splits import Windows
from mpx.errors import UserError


def test_wikitext2_real_files(config, real):
    data = mpx.data.load(config("wikitext2", root=str(real("wikitext-2").parent)))
    assert data.spec.vocab_size == data.spec.classes == 33_278
    lengths = [len(split.stream) for split in (data.train, data.val, data.test)]
    assert lengths == [2_088_628, 217_646, 245_569]  # as published
    assert data.sizes == {"train": (2_088_628 - 70) // 70, "val": 217_645 // 70, "test": 245_568 // 70}


def test_words_get_ids_as_they_appear():
    place = {}
    assert language.word_ids("a b a\n \nc\x85d\n", place).tolist() == [0, 1, 0, 2, 2, 3, 4, 2]
    assert list(place) == ["a", "b", "<eos>", "c", "d"]


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_tinyshakespeare(config, real, tokenizer):
    path = real("tinyshakespeare") / "input.txt"
    data = mpx.data.load(config("text_file", path=str(path), tokenizer=tokenizer, vocab_size=512))
    assert data.spec.vocab_size == (65 if tokenizer == "char" else 512)
    text = path.read_text()
    if tokenizer == "char":
        alphabet = sorted(set(text))
        stream = torch.cat([split.stream for split in (data.train, data.val, data.test)])
        assert "".join(alphabet[i] for i in stream.tolist()) == text
        assert len(data.train.stream) == len(text) * 90 // 100
    else:
        assert len(data.train.stream) < len(text) / 1.5


def test_targets_are_the_next_tokens_and_windows_do_not_overlap():
    split = Windows(torch.arange(101, dtype=torch.int32), 10)
    plan = split.plan(0, 0)
    x, y = split.finish(*split.raw(torch.arange(len(split)), plan), plan)
    assert x.dtype == y.dtype == torch.int64
    assert x.flatten().tolist() == list(range(100))
    assert torch.equal(y, x + 1)


def test_train_windows_start_elsewhere_each_epoch():
    split = Windows(torch.arange(1003, dtype=torch.int32), 10, shift=True)
    starts = [split.plan(0, epoch) for epoch in range(60)]
    assert {len(s) for s in starts} == {len(split)}
    assert {int(s[0]) for s in starts} == set(range(10))
    assert all(s[-1] + 10 < 1003 and (s.diff() == 10).all() for s in starts)
    assert torch.equal(split.plan(0, 3), split.plan(0, 3))


def test_own_validation_and_test_files(config, tmp_path):
    """A part without a file of its own is a twentieth of the train file, at its end."""
    for name, text in (("train", "ab" * 500), ("val", "b" * 100), ("test", "c" * 200)):
        (tmp_path / name).write_text(text)

    def streams(**more):
        data = mpx.data.load(
            config("text_file", path=str(tmp_path / "train"), seq_len=8, batch_size=4, **more)
        )
        return [len(split.stream) for split in (data.train, data.val, data.test)], data.spec.vocab_size

    val, test = ({f"{name}_path": str(tmp_path / name)} for name in ("val", "test"))
    assert streams() == ([900, 50, 50], 2)
    assert streams(**val) == ([950, 100, 50], 2)
    assert streams(**test) == ([950, 50, 200], 3)
    assert streams(**val, **test) == ([1000, 100, 200], 3)


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (
            b"ab" * 100,
            {},
            r"^data\.seq_len=256 is longer than the train part of 180 tokens allows: lower "
            r"data\.seq_len or give more",
        ),
        (
            b"ab",
            {"tokenizer": "wordpiece"},
            r"^data\.tokenizer=wordpiece is not for data=text_file. Use one of char, bpe, or the folder",
        ),
    ],
)
def test_wrong_files_and_fields(config, tmp_path, content, more, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        mpx.data.load(config("text_file", path=str(path), **more))
    assert "\n" not in str(caught.value)
