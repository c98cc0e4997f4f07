"""What tests/composing.py keeps is what Hydra composes anew, whatever was composed and changed before."""

import composing
import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from mpx.train import CONF

WORDS = [
    ["experiment=grid", "seed=0"],
    [],
    ["model=mlp", "seed=3", "model.widths=[8]", "sparsity=2of4", "+note=x"],
    ["task=lstm_sst2", "precision=amp", "precision.loss_scale.initial=4"],
    ["seed=4", "model=mlp", "sparsity=2of4"],
    ["data=mnist", "model=resnet18", "hydra.run.dir=x", "optimizer=sgd", "optimizer.lr=${seed}"],
    ["model=mlp", "optimizer={name:mine}"],
]


def composed():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return [compose("train", words, return_hydra_config=True) for words in WORDS]


def test_what_is_kept_is_what_hydra_composes(monkeypatch):
    kept = composed()
    for cfg in kept:
        OmegaConf.update(cfg, "trainer.max_epochs", 99)
        cfg.hydra.overrides.task.append("more")
    kept = composed()
    assert any(composing._merged)
    monkeypatch.setattr(composing, "_may_keep", lambda repo: False)
    for mine, anew in zip(kept, composed(), strict=True):
        assert OmegaConf.to_container(mine) == OmegaConf.to_container(anew)
        assert OmegaConf.is_struct(mine) == OmegaConf.is_struct(anew)


def test_files_of_ones_own_are_read_each_time(tmp_path):
    (tmp_path / "model").mkdir()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for width in (8, 16):
            (tmp_path / "model" / "mine.yaml").write_text(f"width: {width}\n")
            assert compose("train", [f"hydra.searchpath=[{tmp_path}]", "model=mine"]).model.width == width


@pytest.mark.parametrize(
    ("word", "found"),
    [("model=nosuch", "Could not find 'model/nosuch'"), ("sed=3", "Could not override 'sed'")],
)
def test_a_mistake_is_found_each_time(word, found):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for _ in range(2):
            with pytest.raises(ConfigCompositionException, match=found):
                compose("train", [word])
