"""trainer.strategy=fsdp: every process holds a part of each weight, of its gradient and of its optimizer state.

Neither of Lightning's strategies fits. FSDPStrategy joins weights to flat vectors, which have no rows to mask. ModelParallelStrategy casts
weights after they are sharded, and gives them other names in checkpoints than the plain model has.
Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from mpx.errors import UserError
from mpx.models.blocks import blocks
from mpx.models.probe import sample
from mpx.private.torch_modules import without_views
from mpx.shards import gathered, sharded_as


class Fsdp(DDPStrategy):
    """Starts processes as DDP does. Each one builds and loads the whole model on the host, then keeps its part on the device.

    Checkpoints hold whole tensors under the plain model's names, as those of one device.
    """

    def setup(self, trainer: pl.Trainer) -> None:
        """Shard the model, once, then build its optimizer."""
        self.accelerator.setup(trainer)
        if not isinstance(self.lightning_module.model, FSDPModule):
            model = self.lightning_module.model
            apart = blocks(model, sample(self.lightning_module.spec))
            self.precision_plugin.convert_module(self.model)
            shard(model, apart, self.root_device.type)
            self.model_to_device()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().training_step(*args, **kwargs)

    @torch.no_grad()
    def _share_buffers(self) -> None:
        """Give every process the buffers of process 0, as DDP does before each forward pass. An evaluation changes none, and
        mpx/runs/agreement.py sends them once before it."""
        alike: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for buffer in self.lightning_module.model.buffers():
            alike[buffer.dtype].append(buffer)
        for buffers in alike.values():
            joined = torch.cat([buffer.flatten() for buffer in buffers])
            dist.broadcast(joined, src=0)
            for buffer, values in zip(buffers, joined.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(values.view_as(buffer))

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = self.lightning_module.state_dict(keep_vars=True)  # a tied weight is the same object under each of its names
        found: dict[int, Any] = {}
        for name, value in state.items():
            if id(value) not in found:
                found[id(value)] = gathered(value.detach()) if isinstance(value, Tensor) else value
            state[name] = found[id(value)]
        return state

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return apply_to_collection(super().optimizer_state(optimizer), DTensor, gathered)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            for number, values in state["state"].items():
                for name, value in values.items():
                    if isinstance(value, Tensor) and value.shape == weights[number].shape:
                        values[name] = sharded_as(value, weights[number])
            optimizer.load_state_dict(state)

    def teardown(self) -> None:
        """Do as DDP does, but leave weights and optimizer on their devices: all processes gather them for the test and the record."""
        for part in (self.cluster_environment, self.precision_plugin, self.accelerator, self.checkpoint_io):
            part.teardown()


def refuse_scalars(model: nn.Module) -> None:
    """Raise UserError for a weight that has no rows."""
    for name, weight in model.named_parameters():
        if weight.dim() == 0:
            raise UserError(
                f"trainer.strategy=fsdp shards weights by rows, and {name} of this model is a single number. Give it the shape [1], or use "
                "trainer.strategy=ddp."
            )


def shard(model: nn.Module, apart: list[nn.Module], device: str) -> None:
    """Keep this process's rows of each weight. The whole weights of a block are gathered for its forward and its backward pass.

    apart: blocks that get their weights one after the other; the rest of the model is one more block. device: the kind of device.
    """
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in model.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters = _stay  # it would move the weights out of the memory into which FSDP gathers them
    for block in apart:
        block.register_forward_hook(lambda block, inputs, output: without_views(output))
    for block in [*apart, model]:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)  # False would leave whole weights in the model after an evaluation
        block.set_force_sum_reduction_for_comms(device == "cpu")  # in older PyTorch gloo sums where it should average (pytorch#162338)


def _stay() -> None:
    """In place of nn.RNNBase.flatten_parameters."""
