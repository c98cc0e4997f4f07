"""Private API of other libraries: the only file that may use it, apart from the rooms that tests/test_private.py lists.

Each function says why no public API does, and with which versions it is known to work. tests/test_private.py calls every one of them, so
that a new version which has moved something fails there, under the name of the function. Imports are inside the functions: this file is
read before PyTorch is.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

# Functions of Hydra 1.3 that write files: errors of theirs come from its folder, not from the job. Hydra wraps neither in an exception.
HYDRA_WRITERS = ("run_job", "_save_config")


def hydra_options() -> Collection[str]:
    """Hydra 1.3's command line options, such as --multirun. It offers no list of them."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()._option_string_actions


def stop_workers(loader: Any) -> None:
    """Stop the persistent workers of a DataLoader now (PyTorch 2.11 to 2.15).

    DataLoader has no public way to do so, and workers that wait for garbage collection can take seconds to stop.
    """
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def auto_class_of(auto_class: type, adapt: Callable[[type], type]) -> type:
    """One of transformers' auto classes (5.0 to 5.23) that builds `adapt(network)` where `auto_class` builds the class `network`.

    An auto class takes the network's class from a mapping, for which it has no public hook.
    """
    return type(auto_class.__name__, (auto_class,), {"_model_mapping": _Adapted(auto_class._model_mapping, adapt)})


def has_network(auto_class: type, config_class: type) -> bool:
    """Whether one of transformers' auto classes (5.0 to 5.23) has a network for this configuration. It only raises when it builds."""
    return config_class in auto_class._model_mapping


class _Adapted:
    """The mapping of an auto class from configurations to networks, with `adapt` applied to each network."""

    def __init__(self, plain: Any, adapt: Callable[[type], type]):
        self.plain, self.adapt = plain, adapt

    def __contains__(self, config_class: type) -> bool:
        return config_class in self.plain

    def __iter__(self) -> Iterator[type]:
        return iter(self.plain)

    def __getitem__(self, config_class: type) -> type | list[type]:
        found = self.plain[config_class]
        return [self.adapt(network) for network in found] if isinstance(found, (list, tuple)) else self.adapt(found)


def init_as_pretrained(model: Any, layer: Any) -> None:
    """Give a new layer the random weights that a transformers model (5.0 to 5.23) gives its own. It offers no public initialiser."""
    model._init_weights(layer)


def dispatch_mode() -> Any:
    """The innermost active TorchDispatchMode, or None (PyTorch 2.11 to 2.15). The modes' stack has no public view."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode()


def closure_result(closure: Any) -> Any:
    """What the newest call of Lightning's optimizer closure returned (Lightning 2.6). `consume_result` would take it away."""
    return closure._result


def set_closure_result(closure: Any, result: Any) -> None:
    """Give Lightning's optimizer closure (Lightning 2.6) the result of a step that ran without calling it. It has no setter."""
    closure._result = result


def renew_generator(device: Any) -> None:
    """Let the device's default generator work again after a failed CUDA graph capture (PyTorch 2.11 to 2.15).

    The generator stays in capture mode, and only these undocumented methods replace its state with that of a fresh one.
    """
    import torch

    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device)
    fresh.set_state(generator.get_state())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def compiler_errors() -> tuple[type[BaseException], ...]:
    """What torch.compile raises where the compiler fails and not the function (PyTorch 2.11 to 2.15). No public class covers both."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    return TorchDynamoException, InductorError


def buffers(module: Any) -> dict[str, Any]:
    """A module's own buffers by name, also those that are None, which named_buffers leaves out (PyTorch 2.11 to 2.15)."""
    return module._buffers


def convolution() -> type:
    """The base class of all convolutions (PyTorch 2.11 to 2.15). It has no public name."""
    from torch.nn.modules.conv import _ConvNd

    return _ConvNd


def norm_with_statistics() -> type:
    """The base class of the norms that may track running statistics (PyTorch 2.11 to 2.15). It has no public name."""
    from torch.nn.modules.batchnorm import _NormBase

    return _NormBase


def described_bar(describe: Callable[[str, int, int], str]) -> Any:
    """A RichProgressBar that shows `describe(Lightning's text, epoch, epochs)` for an epoch (Lightning 2.6). It has no public hook."""
    from pytorch_lightning.callbacks import RichProgressBar

    class DescribedBar(RichProgressBar):
        def _get_train_description(self, current_epoch: int) -> str:
            return describe(super()._get_train_description(current_epoch), current_epoch, self.trainer.max_epochs)

    return DescribedBar()
