"""Loss scaling: keep small gradients above the smallest number of FP16, without waiting for the device.

The scale, the overflow flag and every count are tensors on the device. A fused optimizer needs none of them
on the host to skip a step. Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740; the
update rule is torch.amp.GradScaler's.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mpx.private.torch_kernels import skips_on_the_device, unscale_, update_scale_, values_of_sparse

CAUSE = "because gradients were infinite or NaN"
REMEDY = (
    "Lower precision.loss_scale.initial or floor, or set dynamic=true. Or try a lower learning rate "
    "(optimizer.lr), a longer warm-up (schedule.warmup), clipped gradients (trainer.gradient_clip_val=1.0), "
    "or a format with FP32's range (precision=amp_bf16)."
)
# which a resumed run continues; the other counts describe the current part alone
COUNTS = ("skipped", "in_a_row")


class LossScale:
    """One loss scale.

        loss_scale.scale_loss(loss).backward()
        loss_scale.unscale_(gradients)      # in place; notes whether one was infinite or NaN
        loss_scale.step(optimizer)          # does nothing when one was
        loss_scale.update()

    initial: the first scale. dynamic: multiply it by `backoff_factor` after an overflow, and by
    `growth_factor` after `growth_interval` clean steps in a row, within `floor` and `ceiling`. Otherwise the
    scale is fixed; steps that overflow are skipped, too.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        initial: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        floor: float = 0.0,
        ceiling: float = 2.0**24,
        dynamic: bool = True,
    ):
        self.growth_factor, self.backoff_factor, self.growth_interval = (
            growth_factor,
            backoff_factor,
            growth_interval,
        )
        self.initial, self.floor, self.ceiling, self.dynamic = (
            float(initial),
            float(floor),
            float(ceiling),
            dynamic,
        )
        self.scale = torch.full((), self.initial, dtype=torch.float32, device=device)
        self.clean = torch.zeros((), dtype=torch.int32, device=device)  # steps in a row without overflow
        # 1 when this step's gradients overflowed
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        # the same for the optimizers that have already stepped at this scale
        self.found_before = self.found_inf.clone()
        self.lowest, self.highest = self.scale.clone(), self.scale.clone()
        self.skipped = self._count()  # steps
        self.in_a_row = self._count()  # steps skipped since the last one that was taken
        self.most_in_a_row = self._count()
        self.at_floor = self._count()  # overflows at a scale that could not fall any more

    def _count(self) -> Tensor:
        return torch.zeros((), dtype=torch.int64, device=self.scale.device)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """loss × scale. Moves the tensors to the device of the first loss, which is unknown before if there
        are several processes.
        """
        if self.scale.device != loss.device:
            for name, value in vars(self).items():
                if isinstance(value, Tensor):
                    setattr(self, name, value.to(loss.device))
        return loss * self.scale

    @torch.no_grad()
    def unscale_(self, gradients: Iterable[Tensor]) -> None:
        """Divide by the scale, in place. May be called several times in a step; one overflow anywhere skips
        the step.
        """
        self._multiply(gradients, self.scale.double().reciprocal().float())

    @torch.no_grad()
    def rescale_(self, gradients: Iterable[Tensor]) -> None:
        """Multiply by the scale, in place: the opposite of `unscale_`. Notes no overflow."""
        noted = self.found_inf.clone()
        self._multiply(gradients, self.scale)
        self.found_inf.copy_(noted)

    def _multiply(self, gradients: Iterable[Tensor], factor: Tensor) -> None:
        groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for gradient in gradients:
            # the sum of values with the same index may overflow
            if gradient.is_sparse and gradient.dtype == torch.float16:
                gradient.copy_(gradient.coalesce())
            values = values_of_sparse(gradient) if gradient.is_sparse else gradient
            groups[values.device, values.dtype].append(values)
        for (device, _), tensors in groups.items():
            overflow = self.found_inf.to(device)
            unscale_(tensors, overflow, factor.to(device))
            if overflow is not self.found_inf:
                self.found_inf.copy_(torch.maximum(self.found_inf, overflow.to(self.found_inf.device)))

    def step(self, optimizer: torch.optim.Optimizer, **kwargs: Any) -> Any:
        """optimizer.step(), unless the gradients overflowed. Fused optimizers decide on the device; others
        wait for it.
        """
        if skips_on_the_device(optimizer) and not _begins_undampened(optimizer):
            _start_momentum(optimizer)
            fused: Any = optimizer
            fused.grad_scale, fused.found_inf = None, self.found_inf
            try:
                return optimizer.step(**kwargs)
            finally:
                del fused.grad_scale, fused.found_inf
        return None if self.found_inf.item() else optimizer.step(**kwargs)

    @torch.no_grad()
    def stepped(self) -> None:
        """Count this optimizer's skip and clear its flag, since another optimizer may step at the same scale
        before `update`.
        """
        self.skipped += self.found_inf.bool()
        self.note(self.found_inf)
        self.found_inf.zero_()

    @torch.no_grad()
    def note(self, overflowed: Tensor) -> None:
        """Let this overflow flag lower the scale at the next `update_after_several`."""
        torch.maximum(self.found_before, overflowed, out=self.found_before)

    @torch.no_grad()
    def update(self) -> None:
        """Adjust the scale and the counts after a step, and clear its overflow flag."""
        self.skipped += self.found_inf.bool()
        self._adjust()

    @torch.no_grad()
    def update_after_several(self) -> None:
        """As `update`, after every optimizer has `stepped`: an overflow of any of them lowers the scale,
        once.
        """
        self.found_inf.copy_(self.found_before)
        self.found_before.zero_()
        self._adjust()

    def _adjust(self) -> None:
        overflowed = self.found_inf.bool()
        self.in_a_row.add_(1).mul_(overflowed)
        torch.maximum(self.most_in_a_row, self.in_a_row, out=self.most_in_a_row)
        if self.dynamic:
            self.at_floor += overflowed & (self.scale <= self.floor)
            update_scale_(
                self.scale,
                self.clean,
                self.found_inf,
                self.growth_factor,
                self.backoff_factor,
                self.growth_interval,
            )
            self.scale.clamp_(self.floor, self.ceiling)
            torch.minimum(self.lowest, self.scale, out=self.lowest)
            torch.maximum(self.highest, self.scale, out=self.highest)
        self.found_inf.zero_()

    def record(self) -> dict[str, Any]:
        """For result.json."""
        return {
            "initial": self.initial,
            "final": self.scale.item(),
            "min": self.lowest.item(),
            "max": self.highest.item(),
            "dynamic": self.dynamic,
        }

    def state_dict(self) -> dict[str, Any]:
        """A state that torch.amp.GradScaler loads, and the counts."""
        return {
            "scale": self.scale.item(),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": int(self.clean),
            "counts": {name: int(getattr(self, name)) for name in COUNTS},
            "range": [self.initial, self.lowest.item(), self.highest.item()],
            "dynamic": self.dynamic,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the scale and counts of `state`, which is this class's or GradScaler's.

        The factors and limits stay this object's. Where this scale or the saved one is fixed, this scale
        stays.
        """
        if self.dynamic and state.get("dynamic", True):
            self.scale.fill_(state["scale"]).clamp_(self.floor, self.ceiling)
            # PyTorch raises the scale at equality only
            self.clean.fill_(min(state["_growth_tracker"], self.growth_interval - 1))
            self.initial, lowest, highest = state.get("range", [state["scale"]] * 3)
            self.lowest.fill_(lowest)
            self.highest.fill_(highest)
        counts = state.get("counts", {})
        for name in COUNTS:
            getattr(self, name).fill_(counts.get(name, 0))


def trouble(scale: LossScale, steps: int, max_skips: int | None) -> str | None:
    """One line if the skipped steps say that training has diverged, and what to try.

    steps: of the optimizer, with the skipped ones. max_skips: this many in a row mean divergence.
    """
    if int(scale.at_floor):
        return (
            "gradients are infinite or NaN although the loss scale has fallen to its floor, "
            f"precision.loss_scale.floor={scale.floor:g} ({int(scale.skipped)} of {steps} steps skipped). "
            f"{REMEDY}"
        )
    if max_skips is not None and (run := int(scale.most_in_a_row)) >= max_skips:
        return (
            f"{run} optimizer steps in a row were skipped {CAUSE} (loss scale {scale.scale.item():g}, "
            f"precision.loss_scale.max_skips={max_skips}). {REMEDY}"
        )
    return None


def idle(scale: LossScale, steps: int) -> str | None:
    """One line if all steps were skipped."""
    if steps == 0 or int(scale.skipped) < steps:
        return None
    return f"all {steps} optimizer steps were skipped {CAUSE}. {REMEDY}"


def _begins_undampened(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the next step makes an SGD's momentum from gradients without dampening, as a momentum of zero
    would not.
    """
    dampened = isinstance(optimizer, torch.optim.SGD) and any(
        group["momentum"] and group["dampening"] for group in optimizer.param_groups
    )
    return dampened and not optimizer.state


def _start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Set the momentum of a fused SGD to zero before its first step.

    PyTorch 2.11 to 2.15 allocates it uninitialised and fills it in the first step. If that step is skipped,
    the next one reads the uninitialised memory.
    """
    if not isinstance(optimizer, torch.optim.SGD) or optimizer.state:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
