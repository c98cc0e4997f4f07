"""Private API of PyTorch Lightning 2.6."""

from collections.abc import Callable
from typing import Any

from pytorch_lightning.callbacks import RichProgressBar


def closure_result(closure: Any) -> Any:
    """The result of the newest call of Lightning's optimizer closure. `consume_result` would take it away."""
    return closure._result


def set_closure_result(closure: Any, result: Any) -> None:
    """Give Lightning's optimizer closure the result of a step that ran without calling it. It has no setter."""
    closure._result = result


def described_bar(describe: Callable[[str, int, int], str]) -> RichProgressBar:
    """A progress bar that shows `describe(Lightning's text, epoch, epochs)` for an epoch. RichProgressBar has no public hook for it."""

    class DescribedBar(RichProgressBar):
        def _get_train_description(self, current_epoch: int) -> str:
            return describe(super()._get_train_description(current_epoch), current_epoch, self.trainer.max_epochs)

    return DescribedBar()
