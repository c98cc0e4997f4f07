"""Every script of experiments/ says how to use it, and refuses a wrong argument before it measures."""

import pytest
from experiment import EXPERIMENTS
from processes import Fork

SCRIPTS = [
    path
    for path in sorted(EXPERIMENTS.rglob("*.py"))
    if '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8")
]
WRONG = "--no-such-option"


def name(path):
    return str(path.relative_to(EXPERIMENTS))


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_help_and_a_wrong_argument(path, tmp_path):
    helped, refused = (
        Fork(word, folder=tmp_path, env={"OUT": str(tmp_path)}, script=path) for word in ("--help", WRONG)
    )
    assert helped.wait(120) == 0, helped.err
    assert path.read_text(encoding="utf-8").partition('"""')[2].partition("\n")[0] in helped.out
    assert refused.wait(120) == 2, refused.err
    assert refused.err.startswith("error: ")
    assert refused.err.count("\n") == 1, refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "words", "line"),
    [
        (
            "auto/run.py",
            ["--models", "lstm,bert"],
            "argument --models: bert is not one of resnet50, bert_small, resnet18, lstm, language_model.",
        ),
        (
            "served/speed.py",
            ["bert:bf16"],
            "bert:bf16 must be a model and formats, as bert_base:bf16,int8. The models are ",
        ),
    ],
)
def test_a_wrong_value_is_refused_before_a_table_is_opened(script, words, line, tmp_path):
    run = Fork(*words, folder=tmp_path, env={"OUT": str(tmp_path)}, script=EXPERIMENTS / script)
    assert run.wait(120) == 2, run.err
    assert run.err.startswith(f"error: {line}")
    assert run.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
