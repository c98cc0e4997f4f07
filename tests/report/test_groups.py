"""Which control a run is compared with, and how the commands of a study are joined."""

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from made_runs import made
from omegaconf import OmegaConf

from mpx.report.commands import DEFAULTS, commands, compare_command, typed_text
from mpx.report.groups import grouped


def shapes(runs, control="fp32-dense"):
    """[(changes of the group, runs of the control, {setting: runs})]"""
    found = grouped(runs, control)
    return [(g.changes, len(g.control), {name: len(others) for name, others in sorted(g.others.items())}) for g in found]


def both_seeds(*settings):
    return [made(setting, seed) for setting in settings for seed in (0, 1)]


def test_a_plain_study():
    assert shapes(both_seeds("fp32-dense", "amp-dense", "amp-2of4")) == [("", 2, {"amp-2of4": 2, "amp-dense": 2})]


def test_what_all_runs_share_goes_into_the_title():
    runs = both_seeds(
        "fp32-dense trainer.max_epochs=2", "amp-dense trainer.max_epochs=2", "amp-2of4 sparsity.recipe=sr_ste trainer.max_epochs=2"
    )
    assert shapes(runs) == [("trainer.max_epochs=2", 2, {"amp-2of4 sparsity.recipe=sr_ste": 2, "amp-dense": 2})]


def test_a_control_of_each_batch_size():
    runs = both_seeds(*(f"{name}{change}" for name in ("fp32-dense", "amp-dense") for change in ("", " data.batch_size=256")))
    assert shapes(runs) == [("", 2, {"amp-dense": 2}), ("data.batch_size=256", 2, {"amp-dense": 2})]


def test_batch_sizes_come_by_their_size():
    sizes = [f" data.batch_size={size}" for size in (512, 32, 128)]
    found = shapes(both_seeds(*(f"{name}{size}" for name in ("fp32-dense", "amp-dense") for size in sizes)))
    assert [changes for changes, _, _ in found] == ["data.batch_size=32", "data.batch_size=128", "data.batch_size=512"]


def test_without_a_control_of_that_batch_size_the_plain_one_is_taken():
    runs = both_seeds("fp32-dense", "amp-dense data.batch_size=256", "amp-dense precision.loss_scale.initial=1")
    assert shapes(runs) == [("", 2, {"amp-dense data.batch_size=256": 2, "amp-dense precision.loss_scale.initial=1": 2})]


def test_the_control_that_shares_most_changes_is_taken():
    runs = both_seeds("fp32-dense", "fp32-dense data.batch_size=256", "amp-dense data.batch_size=256 precision.loss_scale.initial=1")
    assert shapes(runs) == [("", 2, {}), ("data.batch_size=256", 2, {"amp-dense precision.loss_scale.initial=1": 2})]


def test_variants_of_the_control_alone_are_settings_under_study():
    scales = [f"amp-dense precision.loss_scale.dynamic=false{more}" for more in ("", " precision.loss_scale.initial=1")]
    changes = [" ".join(scale.split()[1:]) for scale in scales]
    assert shapes(both_seeds("amp-dense", *scales), "amp-dense") == [("", 2, {f"amp-dense {change}": 2 for change in changes})]


def test_a_variant_of_the_control_that_another_setting_shares_is_a_control():
    runs = both_seeds("fp32-dense", "fp32-dense data.batch_size=64", "fp32-dense data.batch_size=256", "amp-dense data.batch_size=256")
    assert shapes(runs) == [("", 2, {"fp32-dense data.batch_size=64": 2}), ("data.batch_size=256", 2, {"amp-dense": 2})]


def test_the_only_control_is_taken_even_where_it_changed_something():
    runs = both_seeds("fp32-dense optimizer.lr=0.1", "amp-dense", "tf32-dense optimizer.lr=0.1")
    assert shapes(runs) == [("optimizer.lr=0.1", 2, {"amp-dense (without optimizer.lr=0.1)": 2, "tf32-dense": 2})]


def test_runs_that_no_control_fits_stand_alone():
    runs = both_seeds(
        "fp32-dense optimizer.lr=0.1", "fp32-dense optimizer.lr=0.2", "amp-dense optimizer.lr=0.3", "amp-dense optimizer.lr=0.2"
    )
    assert shapes(runs) == [
        ("optimizer.lr=0.1", 2, {}),
        ("optimizer.lr=0.2", 2, {"amp-dense": 2}),
        ("optimizer.lr=0.3", 0, {"amp-dense": 2}),
    ]
    assert shapes(both_seeds("amp-dense"), "fp32-dense") == [("", 0, {"amp-dense": 2})]


def test_models_and_data_sets_are_never_mixed():
    runs = [made("fp32-dense"), made("amp-dense", model="bert"), made("fp32-dense", data="mnist")]
    assert [(g.model, g.data) for g in grouped(runs, "fp32-dense")] == [("bert", "cifar10"), ("resnet18", "cifar10"), ("resnet18", "mnist")]


def of(*lines):
    """Runs that these commands made; the seed is the number of the line where it is not given."""
    seeds = [dict(word.split("=", 1) for word in line.split() if "=" in word).get("seed", number) for number, line in enumerate(lines)]
    return [made(seed=int(seed), environment={"command": f"python -m mpx.train {line}"}) for line, seed in zip(lines, seeds, strict=True)]


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (["precision=amp seed=0"], ["precision=amp seed=0"]),
        (["precision=amp seed=0", "seed=1 precision=amp if_exists=resume"], ["-m precision=amp seed=0,1"]),
        (
            [f"precision={p} sparsity={s} seed={n}" for p in ("fp32", "amp") for s in ("dense", "2of4") for n in (0, 1, 10, 2)],
            ["-m precision=amp,fp32 sparsity=2of4,dense seed=0,1,2,10"],
        ),
        (
            ["precision=amp seed=0", "precision=amp seed=1", "precision=fp32 seed=0"],
            ["-m precision=amp seed=0,1", "precision=fp32 seed=0"],
        ),
        (["seed=0", "precision=amp seed=0"], ["precision=amp seed=0", "seed=0"]),
        (["seed=0", "seed=1 trainer.progress=off", "seed=2 retry_failed=true fail_fast=true"], ["-m seed=0,1,2"]),
        (["model.widths=[64,32] seed=0", "model.widths=[8] seed=0"], ["-m 'model.widths=[64,32],[8]' seed=0"]),
    ],
)
def test_commands_that_repeat_the_study(lines, joined):
    assert commands(of(*lines)) == tuple(f"python -m mpx.train {line}" for line in joined)


def test_commands_that_are_not_known_are_left_out():
    unknown = [
        made(environment=environment)
        for environment in (
            {},
            {"command": "python own.py"},
            {"command": "python -m mpx.train -m seed=0"},
            {"command": "python -m mpx.train study='a"},
        )
    ]
    assert commands(unknown) == ()


def test_a_seed_that_was_not_typed_is_said():
    assert commands([made(seed=7, environment={"command": "python -m mpx.train"})]) == ("python -m mpx.train seed=7",)


def test_the_comparison_is_a_command_too():
    conf = OmegaConf.load(Path(__file__).parents[2] / "conf" / "compare.yaml")
    usual = {key: conf[key] for key in DEFAULTS}
    assert usual == DEFAULTS
    assert compare_command("s", **usual) == "python -m mpx.compare study=s"
    assert compare_command("s", **usual | {"control": "amp-dense", "margin": 0.005}).endswith("study=s control=amp-dense margin=0.005")


@pytest.mark.parametrize(
    "text", ["default", "/tmp/a-b_1.2", "../out", "2024", "null", "my runs=[1]", "größe", 'a"b', "a'b,c", "$x {y}", "a\\", 'a\\"b', "a\\b"]
)
def test_a_text_is_typed_so_that_the_shell_and_hydra_read_it(text):
    (word,) = shlex.split(typed_text("output_dir", text))
    (override,) = OverridesParser.create().parse_overrides([word])
    assert override.value() == text
    assert (typed_text("output_dir", text) == f"output_dir={text}") == (text in ("default", "/tmp/a-b_1.2", "../out"))
