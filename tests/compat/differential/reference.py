"""A program in plain PyTorch: torch.autocast, torch.amp.GradScaler, and FP32 master weights made by hand.

Gradients come from torch.autograd.grad and wait in a table of this class, so that nothing of how mpx goes about it is repeated here.
Where apex, and so mpx, goes another way than torch.amp, a rule says so:

counted   Each backward pass adjusts its loss's scale by itself; GradScaler does so once a step. A scale fixed at 1 counts nothing.
fp16      Gradients of FP16 weights without master weights are unscaled too, in FP16; GradScaler refuses them.
fixed     A fixed scale never skips a step; GradScaler always looks for infinite gradients.
cleared   A step, also a skipped one, clears the gradients of master weights, which model.zero_grad() does not know.
zeros     With master weights optimizer.zero_grad() leaves zeros for FP32 weights, not None.
dropped   A weight that add_param_group gives a master weight loses its gradient, which nobody has unscaled.

The last four can be left out, to see that programs notice.
"""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from arithmetic import Arithmetic
from building import Built
from programs import Add, Checkpoint, Clip, Evaluate, Pass, Program, Rescale, Step, Zero
from torch import Tensor

OPTIONAL = frozenset({"fixed", "cleared", "zeros", "dropped"})


class Probe(torch.optim.SGD):
    """Tells whether a GradScaler would have stepped."""

    def step(self, closure: Any = None) -> None:
        self.stepped = True


class Reference:
    def __init__(self, program: Program, arithmetic: Arithmetic, rules: frozenset[str] = OPTIONAL):
        self.program, self.arithmetic, self.rules = program, arithmetic, rules
        self.built = Built(program, arithmetic.device)
        self.scaled: dict[Tensor, Tensor] = {}  # weight -> gradient that a delayed pass has left scaled
        self.skip = [False] * len(program.optimizers)
        self.waiting = [False] * len(program.optimizers)
        self.unskipped = [0] * program.num_losses  # of fixed scales
        low, high = program.limits
        self.low, self.high = low or 0.0, high
        first = max(self.low, min(2.0**16, self.high))
        self.scalers = [torch.amp.GradScaler(arithmetic.device, first, growth_interval=program.interval) for _ in self.unskipped]
        for scaler in self.scalers:
            scaler.scale(torch.ones(1, device=arithmetic.device))  # makes its tensors

    def play(self, event: Any) -> Any:
        """What the event returns: losses and outputs."""
        return getattr(self, f"on_{type(event).__name__.lower()}")(event)

    def forward(self, model: int, x: Tensor) -> Tensor:
        built, x = self.built, x.to(self.arithmetic.device)
        if self.program.level == "O1":
            with self.arithmetic.autocast():
                return built.models[model](x).float()
        with self.arithmetic.fp16_weights() if built.halves else nullcontext():
            return built.models[model](x.half() if built.halves else x).float()

    def backward(self) -> Any:
        if self.program.level == "O1":
            return self.arithmetic.autocast() if self.arithmetic.emulated else nullcontext()
        return self.arithmetic.fp16_weights() if self.built.halves else nullcontext()

    def on_pass(self, event: Pass) -> Tensor:
        built, scaler = self.built, self.scalers[event.loss_id]
        loss = event.loss(built.models, self.forward)
        total = scaler.scale(loss.float()) if built.dynamic else loss.float() * built.fixed
        weights = [p for m in event.models for p in built.models[m].parameters() if p.requires_grad]
        with self.backward():
            gradients = torch.autograd.grad(total, weights, allow_unused=True)
        mine = set() if built.alone else {p for i in event.optimizers for p in built.weights_of(i)}
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None and weight in mine:
                self.scaled[weight] = self.scaled[weight] + gradient if weight in self.scaled else gradient
            elif gradient is not None:  # of somebody else's optimizer: still scaled, until somebody clears it
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        victim = event.victim(built.models)
        poisoned = self.scaled.get(victim) if victim in mine else None if victim is None else victim.grad
        if poisoned is not None:
            poisoned.view(-1)[0] = math.inf
        if event.delay:
            self.delay(event, mine)
        else:
            self.unscale(event, mine)
        return loss.detach()

    def delay(self, event: Pass, mine: set[Tensor]) -> None:
        """Earlier gradients join those that are still scaled."""
        for weight in mine:
            target = self.built.master.get(weight, weight)
            if target is weight and weight.grad is not None and not any(self.waiting[i] for i in event.optimizers):
                earlier, weight.grad = weight.grad * self.scale(event.loss_id), None
                self.scaled[weight] = self.scaled[weight] + earlier if weight in self.scaled else earlier
        for i in event.optimizers:
            self.waiting[i] = True

    def unscale(self, event: Pass, mine: set[Tensor]) -> None:
        """GradScaler's own unscaling and its own rule for the scale, on FP32 stand-ins for the gradients."""
        found = {weight: self.scaled.pop(weight) for weight in mine if weight in self.scaled}
        overflow = bool(found) and self.unscaled(event.loss_id, found)
        for weight, gradient in found.items():
            target = self.built.master.get(weight, weight)
            target.grad = gradient if target.grad is None else target.grad + gradient
        for i in event.optimizers:
            self.waiting[i] = False
            self.skip[i] |= overflow

    def unscaled(self, loss_id: int, found: dict[Tensor, Tensor]) -> bool:
        """Divides the gradients by the scale, and adjusts it. Returns whether to skip the step."""
        built, scaler = self.built, self.scalers[loss_id]
        probe = Probe([torch.nn.Parameter(gradient.float()) for gradient in found.values()], lr=0.0)
        stand_ins = probe.param_groups[0]["params"]
        for stand_in in stand_ins:
            stand_in.grad = stand_in.detach().clone()
        if not built.dynamic:
            self.unskipped[loss_id] += not built.alone
            finite = all(bool(stand_in.isfinite().all()) for stand_in in stand_ins)
            inverse = torch.tensor(built.fixed, dtype=torch.float64).reciprocal().float().item()
            for stand_in in stand_ins:
                stand_in.grad *= inverse
            overflow = not finite and "fixed" not in self.rules
        else:
            probe.stepped = False
            scaler.unscale_(probe)
            scaler.step(probe)
            scaler.update()
            scaler.update(max(self.low, min(self.high, scaler.get_scale())))
            overflow = not probe.stepped
        for stand_in, weight in zip(stand_ins, found, strict=True):
            found[weight] = stand_in.grad if weight in built.master else stand_in.grad.to(weight.dtype)
        return overflow

    def scales(self) -> list[dict[str, float]]:
        """As amp.state_dict() has them."""
        if not self.built.dynamic:
            return [{"loss_scale": self.built.fixed, "unskipped": count} for count in self.unskipped]
        return [{"loss_scale": scaler.get_scale(), "unskipped": scaler.state_dict()["_growth_tracker"]} for scaler in self.scalers]

    def scale(self, loss_id: int) -> float:
        return self.scalers[loss_id].get_scale() if self.built.dynamic else self.built.fixed

    def on_step(self, event: Step) -> Tensor | None:
        loss = None if event.closure is None else self.on_pass(event.closure)
        if not self.skip[event.optimizer]:
            self.built.optimizers[event.optimizer].step()
            self.built.copy_masters()
        self.skip[event.optimizer] = False
        if "cleared" in self.rules:
            self.clear(self.built.stepped(event.optimizer))
        return loss

    def clear(self, parameters: Iterable[Tensor]) -> None:
        for p in parameters:
            if p in self.built.weight:
                p.grad = None

    def on_zero(self, event: Zero) -> None:
        built = self.built
        if event.how == "optimizer":
            weights, masters = built.weights_of(event.number), built.with_masters and "zeros" in self.rules
            self.clear(built.stepped(event.number))
        else:
            weights, masters = list(built.models[event.number].parameters()), False
        to_none = (not masters) if event.set_to_none is None else event.set_to_none
        for weight in weights:
            if to_none:
                self.scaled.pop(weight, None)
                weight.grad = None
            elif weight in self.scaled:
                self.scaled[weight] = torch.zeros_like(weight)
            elif weight.grad is not None:
                weight.grad = torch.zeros_like(weight)

    def on_clip(self, event: Clip) -> None:
        torch.nn.utils.clip_grad_norm_(self.built.stepped(event.optimizer), 0.5)

    def on_add(self, event: Add) -> None:
        group = self.built.add(event.optimizer, event.model)
        for p in group:
            if p in self.built.weight and "dropped" not in self.rules:
                p.grad = None if self.built.weight[p].grad is None else self.built.weight[p].grad.float()

    def on_rescale(self, event: Rescale) -> None:
        if self.built.dynamic:
            self.scalers[event.loss_id].update(event.scale)

    def on_checkpoint(self, event: Checkpoint) -> None:
        """Nothing that is saved changes."""
        for p in [p for model in self.built.models for p in model.parameters()] + list(self.built.weight):
            p.grad = None
        self.scaled.clear()
        self.skip, self.waiting = [[False] * len(self.skip) for _ in range(2)]

    def on_evaluate(self, event: Evaluate) -> Tensor:
        return event.output(self.built.models, self.forward)
