"""What a run continues from: the setting and the data of its checkpoint are compared with its own.

Each checkpoint keeps them, and the steps at which the run was continued.
"""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback

from mpx.errors import UserError
from mpx.runs.name import comparable

AFTER_TRAINING = ("data.tta", "trainer.limit_val_batches", "trainer.limit_test_batches")
CHECKSUM = "training data (checksum)"


def setting_of(cfg: DictConfig) -> dict[str, Any]:
    """Every setting that training depends on, as dotted keys."""
    return {key: value for key, value in comparable(cfg).items() if key not in AFTER_TRAINING} | {"seed": cfg.seed}


class History(Callback):
    """The earlier parts of a run.

    checkpoint: that the run continues; None: it begins. setting: those that training depends on. data: checksums of the
    train, validation and test data; () of a project.

    trained_as: the setting of the checkpoint; {} if it does not say. before: settings of all earlier parts that are not
    this run's. pruned: the checkpoint's state of Pruning; {} of a dense run. changed: the splits with other data.
    """

    def __init__(self, checkpoint: dict[str, Any] | None, setting: dict[str, Any], data: tuple[int, ...] = ()):
        checkpoint = checkpoint or {}
        kept = checkpoint.get("mpx", {})  # a checkpoint of Lightning alone has none
        self.data, self.setting = data, setting | ({CHECKSUM: f"{data[0]:08x}"} if data else {})
        self.steps = [*kept.get("resumed_from_steps", []), checkpoint["global_step"]] if checkpoint else []
        self.trained_as = dict(kept.get("setting", {}))
        self.before = unlike(kept.get("before", {}), self.setting) | unlike(self.trained_as, self.setting)
        self.pruned = checkpoint.get("callbacks", {}).get("Pruning", {})
        self.changed = changed_data(checkpoint, data)

    @property
    def next_step(self) -> int:
        """The first step that this part logs; 0 for a run that begins."""
        return self.steps[-1] + 1 if self.steps else 0

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Validations on other data, and the best of them, are not this run's."""
        if self.changed:
            checkpoint |= {"results": {}, "best": None}

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["mpx"] = {"resumed_from_steps": self.steps, "setting": self.setting, "before": self.before}
        checkpoint["mpx"]["data"] = list(self.data)


def unlike(earlier: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    """The settings of earlier steps that are not those of `setting`.

    A dense checkpoint is the dense phase of a run that prunes it. Keys that only one of the two has may be of another
    version of mpx.
    """
    dense = earlier.get("sparsity.pattern") == "dense"
    differing = (key for key in sorted(earlier.keys() & setting.keys()) if earlier[key] != setting[key])
    return {key: earlier[key] for key in differing if not (dense and key.startswith("sparsity."))}


def refuse_other_setting(path: Path, history: History) -> None:
    """Raise UserError, which names the key, where the checkpoint at `path` has all steps of a run in another setting."""
    earlier, setting = history.trained_as, history.setting
    pruned_afterwards = earlier.get("sparsity.pattern") == "dense" and setting.get("sparsity.recipe") == "one_shot"
    both_first = sorted(earlier.keys() | setting.keys(), key=lambda key: (key not in earlier or key not in setting, key))
    for key in both_first if earlier else ():
        if earlier.get(key) != setting.get(key) and not (pruned_afterwards and key.startswith("sparsity.")):
            raise UserError(
                f"ckpt_path={path} was trained with {key}={earlier.get(key)}, this command has {key}={setting.get(key)} and no step "
                "left to train with it. Raise trainer.max_epochs or trainer.max_steps, or leave ckpt_path out."
            )


def refuse_other_data(path: Path, history: History) -> None:
    if history.changed:
        raise UserError(
            f"the {history.changed} data are no longer those that {path} was trained on. Put the old files back, start again with "
            f"if_exists=overwrite, or continue on the new ones all the same with 'ckpt_path=\"{path}\"'."
        )


def refuse_other_optimizer(path: Path, checkpoint: dict[str, Any], name: str) -> None:
    """Raise UserError for a checkpoint whose optimizer keeps another state: PyTorch would load it and take wrong steps."""
    settings = checkpoint["optimizer_states"][0]["param_groups"][0]
    trained = "adamw" if "betas" in settings else "sgd"
    if trained != name:
        raise UserError(
            f"ckpt_path={path} was trained with optimizer={trained}, this command has optimizer={name}. Use optimizer={trained}."
        )


def changed_data(checkpoint: dict[str, Any], data: tuple[int, ...] | list[int]) -> str:
    """`train, val and test`: the splits that are not those of the checkpoint, as far as it has their checksums."""
    trained = checkpoint.get("mpx", {}).get("data") or data
    splits = zip(("train", "val", "test"), trained, data, strict=False)
    changed = [name for name, one, other in splits if one != other]
    return " and ".join(filter(None, (", ".join(changed[:-1]), *changed[-1:])))
