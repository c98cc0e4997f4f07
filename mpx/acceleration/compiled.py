"""torch.compile of a function, so that it can be left out again: the model itself stays as it is, and so does its state_dict."""

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mpx.errors import UserError
from mpx.private import compiler_errors

GRAPHED = {"max-autotune": "max-autotune-no-cudagraphs"}  # where the whole step is one graph, the compiler is to make none
NOISE = (  # the compiler's, which a user can do nothing about
    ".*TensorFloat32 tensor cores.*available but not enabled.*",  # advice in fp32, where IEEE products are meant
    r"\s*Online softmax is disabled on the fly",  # torch 2.11, on reductions that it splits
    ".*TypedStorage is deprecated.*",  # its own use of it, with max-autotune
    "The CUDA Graph is empty.*",  # with reduce-overhead it begins with an empty one, on purpose
)


class Compiled:
    """Calls `function` compiled. When that cannot be compiled: UserError if `required`, else as it is from then on, and `tell` says so.

    A warning that the user has had turned into an error (python -W error) is no failure to compile, and is raised as it is.

    mode: torch.compile's. in_graph: it will be recorded in a CUDA graph.
    """

    def __init__(self, function: Callable[..., Any], mode: str, *, in_graph: bool, required: bool, tell: Callable[[str], None]):
        for message in NOISE:
            warnings.filterwarnings("ignore", message)
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # tells that a CUDA toolkit is here and no device
        self.function, self.required, self.tell = function, required, tell
        self.compiled: Callable[..., Any] | None = torch.compile(
            function, mode=GRAPHED.get(mode, mode) if in_graph else mode, dynamic=False
        )
        self.calls = 0
        self.given_up: str | None = None

    def __call__(self, *args: Any) -> Any:
        if self.compiled is None:
            return self.function(*args)
        try:
            out = self.compiled(*args)
        except (*compiler_errors(), Warning) as error:
            if (warning := next((cause for cause in _causes(error) if isinstance(cause, Warning)), None)) is not None:
                raise warning from None
            out = self.function(*args)  # raises where the function itself is at fault
            self._give_up(" ".join(str(error).split())[:200])
            return out
        self.calls += 1
        return out

    def _give_up(self, reason: str) -> None:
        if self.required:
            raise UserError(f"trainer.compile failed: {reason}. Use trainer.compile=off.")
        self.compiled, self.given_up = None, reason
        self.tell(f"speed: not compiled after all ({reason})")

    def record(self) -> dict[str, Any]:
        """For result.json."""
        return {"compiled_calls": self.calls, "given_up": self.given_up}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was made of or raised in the handling of."""
    seen: list[BaseException | None] = [None]
    while error not in seen:
        yield error
        seen.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
