"""Keep the random state in the checkpoint, so that a resumed run draws the same numbers as an uninterrupted run."""

import random
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from mpx.processes import from_all


def states() -> dict[str, Any]:
    """The states of Python's, NumPy's, torch's and CUDA's generators. The first two are lists, which weights_only can load."""
    version, internal, gauss = random.getstate()
    of_numpy = np.random.get_state(legacy=False)
    keys, position = of_numpy["state"]["key"].tolist(), int(of_numpy["state"]["pos"])
    return {
        "python": [version, list(internal), gauss],
        "numpy": [of_numpy["bit_generator"], keys, position, int(of_numpy["has_gauss"]), float(of_numpy["gauss"])],
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
    """Saves the states of all generators in checkpoints. Restores them when training starts, after all setup has drawn.

    Each process draws from its own generators, and on a GPU from that of its own device. Before the training, all draw
    alike, so that their models are equal; in it, each process draws other numbers.
    """

    def __init__(self) -> None:
        self._restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """All processes call this: the state of rank 0, and with several processes those of the others, by rank.

        A run with no step left does not start to train: the state of its checkpoint stays, from which a longer run goes on.
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
            torch.manual_seed(int(torch.randint(2**62, (trainer.global_rank,), generator=alike)[-1]))  # and the device's
