"""What an optimizer's step computes: the loss, by a closure, and the change of the weights."""

from collections.abc import Callable
from typing import Any, Self

from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from mpx.errors import UserError
from mpx.private.torch_dispatch import TorchDispatchMode


def computes_loss_several_times(optimizer: Optimizer) -> bool:
    """Whether a step is known to do so. The signature of `step` does not tell."""
    return isinstance(optimizer, LBFGS)


def computed_once(loss: Any, refusal: str) -> Callable[[], Any]:
    """A closure for a step whose loss and gradients are computed already. Raises UserError when it is called
    again.
    """
    losses = [loss]

    def closure() -> Any:
        if not losses:
            raise UserError(refusal)
        return losses.pop()

    return closure


class KnowsUpdates(TorchDispatchMode):
    """A mode that knows whether some optimizer computes its change of the weights: in its step, outside the
    step's closure (`updating`).

    That is no arithmetic of the model. Muon multiplies matrices in BF16 there, whatever the format of the
    model.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = 0  # within each other, as that of an optimizer around another one
        self._hooks: list[Any] = []

    @property
    def updating(self) -> bool:
        return self._steps > 0

    def __enter__(self) -> Self:
        self._hooks += [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for _ in range(2):
            self._hooks.pop().remove()

    def _begin(
        self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        """args: with the optimizer."""
        self._steps += 1
        if callable(kwargs.get("closure")):
            kwargs = kwargs | {"closure": self._outside(kwargs["closure"])}
        elif len(args) > 1 and callable(args[1]):
            args = (args[0], self._outside(args[1]), *args[2:])
        return args, kwargs

    def _end(self, *step: Any) -> None:
        self._steps -= 1

    def _outside(self, closure: Callable) -> Callable:
        def compute(*args: Any, **kwargs: Any) -> Any:
            steps, self._steps = self._steps, 0
            try:
                return closure(*args, **kwargs)
            finally:
                self._steps = steps

        return compute
