"""The object `amp._amp_state`, and the names that scripts import from `apex.amp._amp_state`.

Source of the names: NVIDIA apex 25.05, apex/amp/_amp_state.py.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from mpx.compat.amp.properties import Properties
from mpx.compat.amp.scaler import LossScaler
from mpx.compat.amp.session import Session
from mpx.errors import UserError
from mpx.processes import rank_and_world


class Absent(UserError, AttributeError):
    """Also an AttributeError, so that hasattr() returns False."""


class AmpState:
    """The newest amp.initialize of this process, and switches for the next one. Holds no model and no optimizer.

    hard_override: conflicting arguments of initialize, and FP16 models, give a warning instead of an error.
    allow_incoming_model_not_fp32: accept models with FP16 weights. verbosity: 0 prints nothing; initialize sets it.
    handle: that of the newest O1 or amp.init; see mpx.compat.amp.everywhere.
    """

    __slots__ = ("allow_incoming_model_not_fp32", "handle", "hard_override", "session", "verbosity")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.hard_override = self.allow_incoming_model_not_fp32 = False
        self.verbosity = 1

    def get(self, caller: str) -> Session:
        if self.session is None:
            raise Absent(f"{caller} before amp.initialize: call model, optimizer = amp.initialize(model, optimizer, opt_level=…) first.")
        return self.session

    @property
    def loss_scalers(self) -> list[LossScaler]:
        return self.get("amp._amp_state.loss_scalers").loss_scalers

    @property
    def opt_properties(self) -> Properties:
        return self.get("amp._amp_state.opt_properties").properties


_amp_state = AmpState()


def warn_or_err(msg: str) -> None:
    """Raise UserError, or print a warning if the script has set hard_override."""
    if not _amp_state.hard_override:
        raise UserError(msg)
    print(f"Warning:  {msg}")


def maybe_print(msg: str, rank0: bool = False) -> None:
    """Print unless verbosity is 0. rank0: only in the first process."""
    if _amp_state.verbosity > 0 and not (rank0 and rank_and_world()[0] > 0):
        print(msg)


def master_params(optimizer: Any) -> Iterator[Tensor]:
    """The parameters that the optimizer steps: FP32 master weights if there are any. Clip these after scale_loss."""
    for group in optimizer.param_groups:
        yield from group["params"]
