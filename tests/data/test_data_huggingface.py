"""Hugging Face data sets on disk: what save_to_disk writes, and Parquet, Arrow and JSONL files, for each
task.
"""

import re

import pytest

import mpx.data
from mpx.data.spec import NO_LABEL
from mpx.errors import UserError

datasets = pytest.importorskip("datasets", reason="the extra mpx[data] is not installed")
CLASS = datasets.ClassLabel(names=["neg", "pos"])


def made(count=40, start=0, label=None, feature=CLASS, text=None):
    rows = range(start, start + count)
    columns = {"text": [text(i) if text else f"a {'good' if i % 2 else 'bad'} film {i}" for i in rows]}
    columns["label"] = [label(i) if label else i % 2 for i in rows]
    words = (
        datasets.List(datasets.Value("string"))
        if text and isinstance(text(0), list)
        else datasets.Value("string")
    )
    return datasets.Dataset.from_dict(columns, features=datasets.Features({"text": words, "label": feature}))


@pytest.fixture
def load(config, tmp_path):
    def of(path, **more):
        return mpx.data.load(
            config("huggingface", path=str(path), batch_size=4, seq_len=8, vocab_size=300, **more)
        )

    return of


def test_a_saved_folder_with_splits(load, tmp_path):
    parts = {"train": made(40), "validation": made(8, 40), "test": made(12, 48)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = load(tmp_path / "saved")
    assert data.sizes == {"train": 40, "val": 8, "test": 12}
    assert data.test.labels.tolist() == [0, 1] * 6


WRITERS = {
    "parquet": lambda part, path: part.to_parquet(str(path)),
    "jsonl": lambda part, path: part.to_json(str(path)),
}


@pytest.mark.parametrize("ending", WRITERS)
def test_files_by_the_names_of_their_splits(load, tmp_path, ending, capfd):
    (tmp_path / "set").mkdir()
    parts = {
        "train-00000-of-00002": made(20),
        "train-00001-of-00002": made(20, 20),
        "dev": made(8, 40),
        "test": made(8, 48),
    }
    for name, part in parts.items():
        WRITERS[ending](part, tmp_path / "set" / f"{name}.{ending}")
    data = load(tmp_path / "set")
    assert capfd.readouterr() == ("", "")
    assert data.sizes == {"train": 40, "val": 8, "test": 8}
    one = load(tmp_path / "set" / f"train-00000-of-00002.{ending}")
    assert one.sizes == {"train": 16, "val": 2, "test": 2}


def test_the_classes_have_the_order_of_the_data_set(load, tmp_path):
    """A tuned model's outputs, and those who read a trained one's, count them so."""
    feature = datasets.ClassLabel(names=["world", "business", "never", "sports"])
    parts = {name: made(30, label=lambda i: [0, 1, 3][i % 3], feature=feature) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved").test.labels.tolist() == [0, 1, 2] * 10


def test_regression(load, tmp_path):
    made(20, label=lambda i: i / 2, feature=datasets.Value("float64")).save_to_disk(tmp_path / "saved")
    data = load(tmp_path / "saved", task="regression")
    assert (data.spec.task, data.spec.classes) == ("regression", 1)
    assert data.train.labels.shape == (16, 1)
    assert set(data.train.labels.flatten().tolist()) < {i / 2 for i in range(20)}


def test_multilabel(load, tmp_path):
    made(20, label=lambda i: [0, 1][: i % 3], feature=datasets.List(CLASS)).save_to_disk(tmp_path / "saved")
    data = load(tmp_path / "saved", task="multilabel")
    assert {tuple(row) for row in data.train.labels.tolist()} == {(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)}


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe"])
def test_tokens(load, tmp_path, tokenizer):
    """Each word's first token has the word's label; where words are cut, no other has."""
    part = made(
        40,
        text=lambda i: ["xylophone", "goes", f"{i:05}"],
        label=lambda i: [0, 1, 1],
        feature=datasets.List(CLASS),
    )
    part.save_to_disk(tmp_path / "saved")
    data = load(tmp_path / "saved", task="tokens", tokenizer=tokenizer)
    assert data.spec.task == "tokens"
    assert data.train.labels.shape == data.train.ids.shape == (32, 8)
    for ids, labels in zip(data.train.ids, data.train.labels, strict=True):
        found = labels[labels != NO_LABEL].tolist()
        assert found == [0, 1, 1][: len(found)]
        assert len(found) >= 2
        assert labels[0] == NO_LABEL  # [CLS]
        assert (labels[ids == data.spec.pad_id] == NO_LABEL).all()


INTS = datasets.List(datasets.Value("int64"))


@pytest.mark.parametrize(
    ("task", "label", "feature", "message"),
    [
        (
            "classification",
            float("nan"),
            datasets.Value("float64"),
            "is 'nan'; data.task=classification needs one label",
        ),
        ("multilabel", [0, 1, 0], INTS, "is '[0, 1, 0]'; data.task=multilabel needs a list of the labels "),
        ("regression", "high", datasets.Value("string"), "is 'high'; data.task=regression needs numbers"),
    ],
)
def test_what_is_no_label_becomes_no_class(load, tmp_path, task, label, feature, message):
    made(40, label=lambda i: label, feature=feature).save_to_disk(tmp_path / "saved")
    with pytest.raises(
        UserError, match=re.escape(f"data.label_column=label: row 1 of {tmp_path}/saved {message}")
    ) as caught:
        load(tmp_path / "saved", task=task)
    assert "\n" not in str(caught.value)


def test_mistakes_are_one_line(load, tmp_path):
    made(20).save_to_disk(tmp_path / "saved")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut off")
    (tmp_path / "null.jsonl").write_text('{"text": null, "label": "x"}\n')
    datasets.DatasetDict({"test": made(8)}).save_to_disk(tmp_path / "untrained")
    for path, more, message in (
        ("saved", {"text_column": "sentence"}, "data.text_column=sentence is not a column of"),
        ("cut.parquet", {}, "cannot be read as a data set ("),
        ("null.jsonl", {}, "null.jsonl is 'None', where a text is needed"),
        ("untrained", {}, "needs a split called train, and none that is empty: it has test (8 rows)."),
    ):
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            load(tmp_path / path, **more)
        assert "\n" not in str(caught.value)
