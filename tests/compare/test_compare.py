"""python -m mpx.compare: from a folder of real runs, and from its results.csv; its errors in one line."""

import shlex
import shutil

import pytest
from few_steps import FEW_STEPS
from made_runs import made, record, write
from started import light, start

from mpx.compare.__main__ import main
from mpx.compare.groups import refuse_other_contents
from mpx.errors import UserError
from mpx.settings.compare import COMPARE
from mpx.train import main as train


def compare(folder, *overrides):
    return start(main, folder, *overrides)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Real runs: two seeds of FP32 and one of AMP, whose second seed was cut off."""
    folder = tmp_path_factory.mktemp("swept")
    for words in (["precision=fp32", "seed=0"], ["precision=fp32", "seed=1"], ["precision=amp", "seed=0"]):
        done = start(train, folder, "model=mlp", *words, *FEW_STEPS)
        assert done.code == 0, done.err
    (amp,) = folder.glob("outputs/default/mlp-digits-amp-*/seed0")
    shutil.copytree(amp, amp.with_name("seed1"), ignore=shutil.ignore_patterns("result.json"))
    return folder


@pytest.fixture(scope="module")
def reported(swept):
    """What the comparison of `swept` printed; its files lie beside the runs."""
    return compare(swept, "study=default", "control=fp32-dense")


def test_a_real_study(swept, reported):
    done = reported
    assert (done.code, done.err) == (0, "")
    assert done.words.startswith(
        "mlp on digits, trainer.limit_test_batches=1batches trainer.limit_train_batches=2batches"
    )
    assert "1 left out" in done.out
    assert "still running, or cut off" in done.words
    assert "No setting is shown to train at no loss of accuracy: FP16 is undecided" in done.words
    table = (swept / "outputs" / "default" / "results.csv").read_text()
    assert len(table.splitlines()) == 4
    assert done.out.splitlines()[-2:] == [
        "written to outputs/default: report.html, report.md, plots/, results.csv, differences.csv",
        "tensorboard --logdir outputs/default shows the runs, and their comparison in _report",
    ]
    assert (swept / "outputs" / "default" / "report.html").is_file()
    again = compare(swept, "study=default")
    assert again.out == done.out
    assert (swept / "outputs" / "default" / "results.csv").read_text() == table


@pytest.fixture(scope="module")
def swept_rates(tmp_path_factory):
    """A study of the learning rate alone: without its default, and without any run of fp32-dense."""
    folder = tmp_path_factory.mktemp("rates")
    for lr in (0.05, 0.02):
        for seed in (0, 1):
            changed = {"optimizer.lr": lr, "trainer.max_steps": 9}
            content = record(precision="amp_bf16", seed=seed, accuracy=0.9 + seed / 20 + lr, **changed)
            write(folder / "outputs" / "lr" / f"lr={lr}" / f"seed{seed}", content)
    return folder


LOWER, HIGHER = (f"amp_bf16-dense optimizer.lr={lr}" for lr in (0.02, 0.05))


def test_a_sweep_over_a_hyperparameter_alone(swept_rates):
    done = compare(swept_rates, "study=lr")
    assert (done.code, done.err) == (0, "")
    assert done.words.startswith("resnet18 on cifar10, trainer.max_steps=9 ")
    assert "loss of accuracy: BF16 optimizer.lr=0.05 is undecided" in done.words
    why = f"the control is {LOWER}; to take another, type it as"
    assert f"· {why} 'control=\"{HIGHER}\"'" in done.words
    for report in ("report.html", "report.md"):
        assert why in " ".join(
            (swept_rates / "outputs" / "lr" / report).read_text().replace("\\_", "_").split()
        )


def test_a_setting_as_control(swept_rates):
    """Typed as it was printed, also where the terminal broke the line; what the report says to repeat it
    gives the same.
    """
    done = compare(swept_rates, "study=lr", f'control="{HIGHER}"'.replace(" ", "\n"))
    assert (done.code, done.err) == (0, "")
    assert "loss of accuracy: BF16 optimizer.lr=0.02 is undecided" in done.words
    assert "the control is" not in done.words
    report = (swept_rates / "outputs" / "lr" / "report.md").read_text()
    (line,) = (line for line in report.splitlines() if line.startswith("python -m mpx.compare"))
    assert line == f"""python -m mpx.compare study=lr 'control="{HIGHER}"'"""
    table = compare(swept_rates, "results=outputs/lr/results.csv", shlex.split(line)[-1])
    assert (table.code, table.out.strip()) == (0, done.out.split("written to")[0].strip())


def test_a_setting_that_did_not_run_as_control(swept_rates):
    done = compare(swept_rates, "study=lr", 'control="amp_bf16-dense optimizer.lr=0.5"')
    assert (done.code, done.out) == (2, "")
    typed = [f"""'control="{setting}"'""" for setting in (LOWER, HIGHER)]
    assert done.err == (
        f"error: control=amp_bf16-dense optimizer.lr=0.5: no run has this setting. Did you mean {typed[1]}? "
        f"There are: {', '.join(typed)}.\n"
    )


MISTAKES = [
    (
        ["study=defalt"],
        "study=defalt: outputs/defalt is not there. Did you mean default? There are: default.",
    ),
    (
        ["output_dir=nowhere"],
        "study=default: nowhere/default is not there. No study is in nowhere yet; "
        "python -m mpx.train study=default",
    ),
    (
        ["control=fp32-dens"],
        "control=fp32-dens: no run has this precision and sparsity. Did you mean "
        "fp32-dense? There are: amp-dense,",
    ),
    (
        ["metric=accuracy"],
        "metric=accuracy: no run has it. Did you mean val/accuracy? There are: "
        "test/accuracy, test/loss, val/",
    ),
    (
        ["margin=0"],
        "margin=0 must be a number above 0 and below 1, or any above 0 with margin_is=absolute. "
        "For example margin=0.01.",
    ),
    (["results=gone.csv"], "results=gone.csv cannot be read (No such file or directory)."),
    (
        ["results=outputs/default/results.csv", "study=default"],
        "results and study both say which runs to compare. Leave one of them out.",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=[" ".join(case[0]) for case in MISTAKES])
def test_mistake_is_one_line(swept, overrides, message):
    done = compare(swept, *overrides)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")
    assert done.err.count("\n") == 1


def test_a_study_without_a_finished_run(tmp_path):
    (tmp_path / "outputs" / "default" / "a" / "seed0").mkdir(parents=True)
    assert "study=default: no finished run in outputs/default. python -m mpx.train" in compare(tmp_path).err
    (tmp_path / "outputs" / "default" / "a" / "seed0" / "result.json").write_text("{")
    done = compare(tmp_path)
    assert done.code == 2
    assert "1 left out, the first: a/seed0 result.json cannot be read" in done.err
    assert not list(tmp_path.rglob("*.csv"))


def test_nothing_heavy_is_imported_for_help_and_mistakes(swept):
    printed = light(
        "mpx.compare", swept, ["--help"], ["--cfg", "job"], ["margin=0"], ["study=nowhere"], ["control=fp32"]
    )
    assert all(f"\n{key}:" in printed for key in COMPARE)


def test_runs_on_different_data_of_one_name_are_not_compared():
    runs = [made("fp32-dense", 0, contents="a"), made("amp-dense", 0, contents="b"), made("tf32-dense", 0)]
    with pytest.raises(
        UserError,
        match=r"^data.name=cifar10: .* were trained on different data of this "
        r"name.* data.name=NAME",
    ):
        refuse_other_contents(runs)
    refuse_other_contents([runs[0], runs[2], made("amp-dense", 0, contents="b", data="other")])
