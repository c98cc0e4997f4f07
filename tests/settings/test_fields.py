"""Every key in conf/ has a rule, every rule has a key, and every shipped value keeps its rule."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mpx.settings.fields import FIELDS, FREE, FREE_BELOW
from mpx.settings.rules import choice, either, many, number, whole
from mpx.train import CONF

FILES = sorted(CONF.glob("*/*.yaml"))


def flat(node, prefix=""):
    for name in node:
        key = f"{prefix}{name}"
        value = OmegaConf.to_container(node, resolve=False)[name]
        if isinstance(value, dict) and key not in FREE:
            yield from flat(node[name], key + ".")
        else:
            yield key, value


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(overrides))


GROUPS = [file for file in FILES if file.parent.name != "tuned"]  # of each tuned pair there is a task


@pytest.mark.parametrize("file", GROUPS, ids=[f"{file.parent.name}={file.stem}" for file in GROUPS])
def test_every_key_of_a_file_has_a_rule_that_its_value_keeps(file):
    cfg = composed(f"{file.parent.name}={file.stem}")
    for key, value in flat(cfg):
        if value == "???" or key in FREE or (key.startswith(FREE_BELOW) and key not in FIELDS):
            continue
        value = OmegaConf.select(cfg, key)
        value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        assert key in FIELDS, f"{key} has no rule in mpx/settings/fields.py"
        assert FIELDS[key].fits(value), f"{key}={value} must be {FIELDS[key].allowed}"


def test_every_rule_belongs_to_a_key():
    keys = set()
    for file in [*FILES, CONF / "train.yaml"]:
        group = (
            ""
            if file.parent.name in ("conf", "task", "tuned", "project", "until")
            else f"{file.parent.name}."
        )
        cfg = OmegaConf.load(file)
        keys |= {f"{group}{key}" for key, _ in flat(cfg) if not key.startswith(("defaults", "hydra"))}
    assert set(FIELDS) <= keys


def test_every_tuned_pair_has_a_task_and_every_task_names_its_pair_and_has_its_numbers():
    tuned, tasks = ({file.stem for file in (CONF / group).glob("*.yaml")} for group in ("tuned", "task"))
    assert tuned == tasks
    for task in tasks:
        cfg = composed(f"task={task}")
        assert task == f"{cfg.model.name}_{cfg.data.name}"
        tuned, used = dict(flat(OmegaConf.load(CONF / "tuned" / f"{task}.yaml"))), dict(flat(cfg))
        assert tuned == {key: used[key] for key in tuned}


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (whole(1, 3, also=("auto", None)), [1, 3, "auto", None], [0, 4, 1.0, True, "x"]),
        (
            number(0, 1, open_low=True, example=1),
            [1, 0.5, 1e-9],
            [0, 1.1, float("nan"), float("inf"), True, "0.5"],
        ),
        (choice("a", True), ["a", True], ["b", 1, False]),
        (many(whole(1), least=2, most=2), [[1, 2]], [[1], [1, 2, 3], [0, 1], "12"]),
        (either(whole(1), number(0, 1, example=1)), [5, 0.5], [1.5, -1]),
    ],
)
def test_rules(rule, good, bad):
    assert all(rule.fits(value) for value in good)
    assert not any(rule.fits(value) for value in bad)


def test_allowed_values_read_as_a_user_types_them():
    assert choice("auto", True, False, None).allowed == "one of auto, true, false, null"


def test_conf_is_the_top_level_folder_of_the_repository():
    assert Path(__file__).parents[2] / "conf" == CONF


@pytest.mark.parametrize("name", ["2of4_2d", "nofm", "unstructured"])
def test_what_patterns_have_in_common_is_the_same_in_each_file(name):
    """Each file is whole, so that a user reads one; only these keys are a pattern's own."""
    first, other = ((CONF / "sparsity" / f"{one}.yaml").read_text().splitlines() for one in ("2of4", name))
    own = ("pattern:", "search:", "n:", "m:", "density:", "backend:", "shape_rule:", "permute:")
    assert [line for line in first if not line.startswith(own)] == [
        line for line in other if not line.startswith(own)
    ]
