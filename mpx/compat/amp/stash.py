"""amp's state for one optimizer: its FP32 master weights, and the overflows since its last step.

Source of the names that begin with all_: NVIDIA apex 25.05, apex/amp/_process_optimizer.py.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mpx.compat.amp._amp_state import maybe_print
from mpx.compat.amp.casting import HALVES, MASTER, agreeing
from mpx.compat.amp.session import Session
from mpx.processes import rank_and_world


class Stash:
    """amp's state for one optimizer, stored as `optimizer._amp_stash`."""

    __slots__ = ("kept", "lazy_init_called", "optimizer", "overflowed", "session", "settled", "waiting", "weights")

    def __init__(self, optimizer: Any, session: Session):
        self.optimizer, self.session = optimizer, session
        self.lazy_init_called = True  # scripts set it
        self.weights: dict[Tensor, Tensor] = {}  # master weight -> the model's FP16 weight
        self.settled = False  # master weights are synchronised with weights that were loaded or broadcast after initialize
        self.overflowed: dict[int, Tensor] = {}  # loss_id -> overflow flag on the device, since the last step
        self.waiting: int | None = None  # loss_id whose gradients are still scaled (delay_unscale)
        self.kept: dict[Tensor, Tensor] = {}  # parameter -> unscaled gradient of earlier passes, set aside

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(the model's parameter, the optimizer's parameter); the same object if there is no master weight."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield self.weights.get(parameter, parameter), parameter

    @property
    def all_fp16_params(self) -> list[Tensor]:
        """The model's FP16 weights."""
        return [weight for weight, _ in self.pairs() if weight.dtype in HALVES]

    @property
    def all_fp32_from_fp16_params(self) -> list[Tensor]:
        """The master weights, in the order of all_fp16_params."""
        return list(self.weights)

    @property
    def all_fp32_from_fp32_params(self) -> list[Tensor]:
        """The model's FP32 weights, which the optimizer steps directly."""
        return [weight for weight, _ in self.pairs() if weight.dtype == torch.float32]

    all_fp32_params = all_fp32_from_fp32_params

    @property
    def params_have_scaled_gradients(self) -> bool:
        return self.waiting is not None

    def make_masters(self, group: dict[str, Any], fp16: set[Tensor]) -> None:
        """Replace every parameter of `group` that is FP16, or will be (`fp16`), by an FP32 master weight."""
        for i, weight in enumerate(group["params"]):
            if weight.dtype in HALVES or weight in fp16:
                master = weight.detach().clone().float().requires_grad_()
                if weight in self.optimizer.state:
                    self.optimizer.state[master] = self.optimizer.state.pop(weight)
                setattr(weight, MASTER, master)
                self.weights[master] = weight
                group["params"][i] = master

    @torch.no_grad()
    def settle(self) -> None:
        """Before the first backward pass, update the master weights from FP16 weights that changed since initialize.

        With several processes, DistributedDataParallel has broadcast the first process's FP16 weights. Only those values agree between
        processes, so all processes start from them.
        """
        if not self.settled:
            for master, weight in self.weights.items():
                master.copy_(weight if rank_and_world()[1] > 1 else agreeing(weight))
            self.settled = True

    def must_skip(self) -> bool:
        """Whether a pass since the last step overflowed. Waits for the device once per step."""
        overflowed = [loss_id for loss_id, flag in self.overflowed.items() if flag.item()]
        self.overflowed.clear()
        if overflowed:
            scale = self.session.loss_scalers[overflowed[0]].loss_scale()
            maybe_print(f"Gradient overflow.  Skipping step, loss scaler {overflowed[0]} reducing loss scale to {scale}")
        return bool(overflowed)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        if self.weights:
            torch._foreach_copy_(list(self.weights.values()), list(self.weights))

    def clear_master_gradients(self) -> None:
        """Drop the gradients of master weights, which model.zero_grad() does not reach."""
        for master in self.weights:
            master.grad = None
