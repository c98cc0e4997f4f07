"""A user's own data: their name, the hash of their contents, and two files of one name."""

import json

import pytest
from few_steps import FEW_STEPS
from made_data import text_csv

from mpx.runs.inputs import contents


@pytest.fixture
def two(tmp_path):
    """Two files of one name and different contents; the words that train on one of them."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        text_csv(tmp_path / folder / "reviews.csv")
    (tmp_path / "b" / "reviews.csv").open("a").write("another thing,no\n")
    common = [
        "model=mlp",
        "data=text_csv",
        "data.seq_len=8",
        "data.vocab_size=200",
        f"data.cache={tmp_path}/cache",
        *FEW_STEPS,
    ]
    return lambda folder, *more: [*common, f"data.path={tmp_path}/{folder}/reviews.csv", *more]


def test_contents_are_of_the_files_and_not_of_their_place(tmp_path):
    for name in ("a.csv", "b.csv"):
        text_csv(tmp_path / name)
    both = [
        contents({"family": "text_csv", "path": str(tmp_path / name), "val_path": None})
        for name in ("a.csv", "b.csv")
    ]
    assert both[0] == both[1]
    assert both[0] != contents(
        {"family": "text_csv", "path": str(tmp_path / "a.csv"), "val_path": str(tmp_path / "b.csv")}
    )
    (tmp_path / "b.csv").open("a").write("one more,no\n")
    assert both[0] != contents({"family": "text_csv", "path": str(tmp_path / "b.csv")})
    assert contents({"name": "digits"}) is None
    assert contents({"family": "text_csv", "path": str(tmp_path / "none.csv")}) is None


def test_two_files_of_one_name_do_not_share_a_folder(train, two):
    first = train(*two("a"))
    assert first.code == 0, first.err
    assert "/mlp-reviews-fp32-dense-" in str(first.folder)
    assert "reviews.csv" not in str(first.folder)
    assert first.record["setting"]["data"] == first.record["data"]["name"] == "reviews"
    for how in ((), ("seed=1",), ("if_exists=skip",)):
        refused = train(*two("b", *how))
        assert refused.code == 2, how
        assert refused.err.startswith("error: data.name=reviews: ")
        assert "with other contents. Give these a name of their own, data.name=NAME; or" in refused.err
    assert len(first.folders) == 1
    named = train(*two("b", "data.name=other"))
    assert named.code == 0, named.err
    assert {
        json.loads((folder / "result.json").read_text())["setting"]["data"] for folder in named.folders
    } == {"reviews", "other"}


def test_the_same_data_in_another_place_are_the_same_setting(train, two, tmp_path):
    def words(folder):
        return two(
            folder, *(f"data.{split}_path={tmp_path}/{folder}/reviews.csv" for split in ("val", "test"))
        )

    first = train(*words("a"))
    assert first.code == 0, first.err
    assert "path" not in str(first.folder.parent.name)
    text_csv(tmp_path / "b" / "reviews.csv")
    again = train(*words("b"), "if_exists=skip")
    assert again.code == 0
    assert "is already completed; nothing to do" in again.out
