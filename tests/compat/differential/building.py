"""The models and optimizers of a program in plain PyTorch, at their level: FP16 weights, and FP32 master weights made by hand."""

import torch
from programs import Program
from torch import Tensor, nn


class Built:
    def __init__(self, program: Program, device: str):
        self.program = program
        overrides = {"loss_scale": "dynamic" if program.level in ("O1", "O2") else 1.0} | program.overrides
        self.dynamic = overrides["loss_scale"] == "dynamic"
        self.fixed = None if self.dynamic else float(overrides["loss_scale"])
        self.halves = program.level in ("O2", "O3")
        self.with_masters = program.level == "O2" and overrides.get("master_weights", True)
        self.alone = self.fixed == 1.0 and not self.with_masters  # amp has nothing to do with gradients
        self.master: dict[Tensor, Tensor] = {}  # FP16 weight -> its master weight
        self.weight: dict[Tensor, Tensor] = {}  # the other way round
        self.models = [program.model(i).to(device) for i in range(len(program.models))]
        exact = {p: p.detach().clone() for model in self.models for p in model.parameters()}
        if self.halves:
            norms_stay = overrides.get("keep_batchnorm_fp32", program.level == "O2") in (True, "True")
            self.halve(norms_stay)
        self.optimizers = [
            program.optimizer(i, [{"params": self.masters(m, exact)} for m in owned]) for i, (_, owned) in enumerate(program.optimizers)
        ]

    def halve(self, norms_stay: bool) -> None:
        for module in (module for model in self.models for module in model.modules()):
            if not (norms_stay and isinstance(module, nn.modules.batchnorm._BatchNorm)):
                for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                    tensor.data = tensor.data.half() if tensor.is_floating_point() else tensor.data

    def masters(self, model: int, exact: dict[Tensor, Tensor]) -> list[Tensor]:
        """What an optimizer is given of a model. exact: FP32 values of its weights."""
        return [self.made_master(weight, exact[weight]) for weight in self.models[model].parameters()]

    def made_master(self, weight: Tensor, exact: Tensor) -> Tensor:
        if not self.with_masters or weight.dtype != torch.float16:
            return weight
        master = self.master[weight] = exact.clone().requires_grad_()
        self.weight[master] = weight
        return master

    def stepped(self, optimizer: int) -> list[Tensor]:
        return [p for group in self.optimizers[optimizer].param_groups for p in group["params"]]

    def weights_of(self, optimizer: int) -> list[Tensor]:
        return [self.weight.get(p, p) for p in self.stepped(optimizer)]

    def add(self, optimizer: int, model: int) -> list[Tensor]:
        group = self.masters(model, {p: p.detach().float() for p in self.models[model].parameters()})
        self.optimizers[optimizer].add_param_group({"params": group})
        return group

    @torch.no_grad()
    def copy_masters(self) -> None:
        for weight, master in self.master.items():
            weight.copy_(master)
