"""What a run continues from: the data of its checkpoint are compared with its own.

Each checkpoint keeps their checksums, the steps at which the run was continued, and the random states, so
that a resumed run draws the same numbers as an uninterrupted one.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from mpx.errors import UserError
from mpx.system.processes import from_all


class History(Callback):
    """The earlier parts of a run.

    checkpoint: that the run continues; None: it begins. data: checksums of the train, validation and test
    data; () of a project.

    steps: at which the run was continued. pruned: the checkpoint's state of Pruning; {} of a dense run.
    changed: the splits with other data.
    """

    def __init__(self, checkpoint: dict[str, Any] | None, data: tuple[int, ...] = ()):
        checkpoint = checkpoint or {}
        kept = checkpoint.get("mpx", {})  # a checkpoint of Lightning alone has none
        self.data = data
        self.steps = [*kept.get("resumed_from_steps", []), checkpoint["global_step"]] if checkpoint else []
        self.pruned = checkpoint.get("callbacks", {}).get("Pruning", {})
        self.changed = changed_data(checkpoint, data)

    @property
    def next_step(self) -> int:
        """The first step that this part logs; 0 for a run that begins."""
        return self.steps[-1] + 1 if self.steps else 0

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["mpx"] = {"resumed_from_steps": self.steps, "data": list(self.data)}


def refuse_other_data(path: Path, history: History) -> None:
    if history.changed:
        raise UserError(
            f"the {history.changed} data are no longer those that {path} was trained on. Put the old files "
            "back, start again with "
            f"if_exists=overwrite, or continue on the new ones all the same with 'ckpt_path=\"{path}\"'."
        )


def refuse_other_optimizer(path: Path, checkpoint: dict[str, Any], name: str) -> None:
    """Raise UserError for a checkpoint whose optimizer keeps another state: PyTorch would load it and take
    wrong steps.
    """
    settings = checkpoint["optimizer_states"][0]["param_groups"][0]
    trained = "adamw" if "betas" in settings else "sgd"
    if trained != name:
        raise UserError(
            f"ckpt_path={path} was trained with optimizer={trained}, this command has optimizer={name}. "
            f"Use optimizer={trained}."
        )


def changed_data(checkpoint: dict[str, Any], data: tuple[int, ...] | list[int]) -> str:
    """`train and test`: the splits that are not those of the checkpoint, as far as it has their
    checksums.
    """
    trained = checkpoint.get("mpx", {}).get("data") or data
    splits = zip(("train", "val", "test"), trained, data, strict=False)
    return " and ".join(name for name, one, other in splits if one != other)


def states() -> dict[str, Any]:
    """The states of Python's, NumPy's, torch's and CUDA's generators. The first two are lists, which
    weights_only can load.
    """
    version, internal, gauss = random.getstate()
    of_numpy = np.random.get_state(legacy=False)
    keys, position = of_numpy["state"]["key"].tolist(), int(of_numpy["state"]["pos"])
    return {
        "python": [version, list(internal), gauss],
        "numpy": [
            of_numpy["bit_generator"],
            keys,
            position,
            int(of_numpy["has_gauss"]),
            float(of_numpy["gauss"]),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_states(state: dict[str, Any]) -> None:
    """state: of `states`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"].cpu())
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in state["cuda"]])


class RandomState(Callback):
    """Saves the states of all generators in checkpoints. Restores them when training starts, after all setup
    has drawn. Until then all processes draw alike, so that their models are equal, and from then on each
    draws other numbers.
    """

    def __init__(self) -> None:
        self._restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """All processes call this: the state of rank 0, and with several processes those of the others, by
        rank.

        A run with no step left does not start to train: the state of its checkpoint stays, from which a
        longer run goes on.
        """
        if self._restored is not None:
            return self._restored
        first, *others = from_all(states())
        return first | ({"others": others} if others else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        parts: list[dict[str, Any]] = []
        if self._restored is not None:
            state, self._restored = self._restored, None
            parts = [state, *state.get("others", ())]
            restore_states(parts[trainer.global_rank if len(parts) == trainer.world_size else 0])
        if trainer.global_rank > 0 and len(parts) != trainer.world_size:
            alike = torch.Generator()
            alike.set_state(torch.get_rng_state())
            # and the device's
            torch.manual_seed(int(torch.randint(2**62, (trainer.global_rank,), generator=alike)[-1]))
