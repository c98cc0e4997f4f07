"""A program as a script for apex.amp writes it, with mpx.compat.amp in the place of apex.amp."""

import copy
import math
from typing import Any

import torch
from programs import Add, Checkpoint, Clip, Evaluate, Pass, Program, Rescale, Step, Zero
from torch import Tensor, nn

from mpx.compat import amp


class Player:
    def __init__(self, program: Program, device: str):
        self.program, self.device = program, device
        self.groups = [list(models) for _, models in program.optimizers]  # models of each optimizer, one parameter group for each
        self.models, self.optimizers = self.made(seed=program.seed)
        self.initialize()

    def made(self, seed: int) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        models = [self.program.model(i, seed).to(self.device) for i in range(len(self.program.models))]
        optimizers = [
            self.program.optimizer(i, [{"params": list(models[m].parameters())} for m in owned]) for i, owned in enumerate(self.groups)
        ]
        return models, optimizers

    def initialize(self) -> None:
        low, high = self.program.limits
        self.models, self.optimizers = amp.initialize(
            self.models,
            self.optimizers,
            opt_level=self.program.level,
            num_losses=self.program.num_losses,
            min_loss_scale=low,
            max_loss_scale=high,
            verbosity=0,
            **self.program.overrides,
        )
        for scaler in amp._amp_state.loss_scalers:
            scaler._scale_seq_len = self.program.interval

    def play(self, event: Any) -> Any:
        return getattr(self, f"on_{type(event).__name__.lower()}")(event)

    def forward(self, model: int, x: Tensor) -> Tensor:
        return self.models[model](x.to(self.device))

    def on_pass(self, event: Pass) -> Tensor:
        loss = event.loss(self.models, self.forward)
        optimizers = [self.optimizers[i] for i in event.optimizers]
        with amp.scale_loss(loss, optimizers, loss_id=event.loss_id, delay_unscale=event.delay) as scaled_loss:
            scaled_loss.backward()
            victim = event.victim(self.models)
            if victim is not None and victim.grad is not None:
                victim.grad.view(-1)[0] = math.inf
        return loss.detach()

    def on_step(self, event: Step) -> Any:
        closure = None if event.closure is None else lambda: self.on_pass(event.closure)
        return self.optimizers[event.optimizer].step(closure)

    def on_zero(self, event: Zero) -> None:
        arguments = {} if event.set_to_none is None else {"set_to_none": event.set_to_none}
        if event.how == "none":
            for p in self.models[event.number].parameters():
                p.grad = None
        else:
            (self.models if event.how == "model" else self.optimizers)[event.number].zero_grad(**arguments)

    def on_clip(self, event: Clip) -> None:
        torch.nn.utils.clip_grad_norm_(amp.master_params(self.optimizers[event.optimizer]), 0.5)

    def on_add(self, event: Add) -> None:
        self.groups[event.optimizer].append(event.model)
        self.optimizers[event.optimizer].add_param_group({"params": list(self.models[event.model].parameters())})

    def on_rescale(self, event: Rescale) -> None:
        scaler = amp._amp_state.loss_scalers[event.loss_id]
        if scaler.dynamic:
            scaler._loss_scale = event.scale

    def on_checkpoint(self, event: Checkpoint) -> None:
        saved = copy.deepcopy([[one.state_dict() for one in (*self.models, *self.optimizers)], amp.state_dict()])
        self.models, self.optimizers = self.made(seed=-1)
        if event.initialize_first:
            self.initialize()
        for one, state in zip((*self.models, *self.optimizers), saved[0], strict=True):
            one.load_state_dict(state)
        if not event.initialize_first:
            self.initialize()
        amp.load_state_dict(saved[1])

    def on_evaluate(self, event: Evaluate) -> Tensor:
        return event.output(self.models, self.forward)
