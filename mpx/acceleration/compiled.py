"""torch.compile of a function. The model itself and its state_dict stay as they are, so a run can go on
without the compiler.
"""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch

from mpx.errors import UserError, one_line
from mpx.precision.switches import keep_apart
from mpx.private.torch_modules import compiler_errors

GRAPHED = {"max-autotune": "max-autotune-no-cudagraphs"}  # makes no CUDA graphs of its own
NOISE = (  # warnings of the compiler that a user cannot act on
    ".*TensorFloat32 tensor cores.*available but not enabled.*",  # advice in fp32, which means IEEE products
    r"\s*Online softmax is disabled on the fly",  # torch 2.11, for reductions that it splits
    ".*TypedStorage is deprecated.*",  # the compiler's own use of it, with max-autotune
    "The CUDA Graph is empty.*",  # reduce-overhead begins with an empty graph on purpose
)


def prepare_compiler() -> None:
    """Keep its cache apart for CPUs with other instructions, and silence what it says and a user can do
    nothing about.
    """
    keep_apart(cpu=torch.backends.cpu.get_cpu_capability())
    for message in NOISE:
        warnings.filterwarnings("ignore", message)
    # reports a CUDA toolkit without a device
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


class Compiled:
    """Calls `function` compiled. If the compiler fails, raises UserError if `required`; otherwise `tell` says
    so and calls stay uncompiled.

    mode: of torch.compile. in_graph: the calls will be recorded in a CUDA graph. later: calls stay uncompiled
    until `start`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mode: str,
        *,
        in_graph: bool,
        required: bool,
        tell: Callable[[str], None],
        later: bool = False,
    ):
        self.function, self.required, self.tell = function, required, tell
        self.mode = GRAPHED.get(mode, mode) if in_graph else mode
        self.compiled: Callable[..., Any] | None = None
        self.calls = 0
        self.from_step: int | None = None
        self.given_up: str | None = None
        if not later:
            self.start(0)

    def start(self, step: int) -> None:
        """Compile the calls from now on. step: optimizer steps before."""
        prepare_compiler()
        # without a word it gives up on code that it has compiled 8 times, and runs of one process share this
        # code
        torch.compiler.reset()
        self.compiled, self.from_step = torch.compile(self.function, mode=self.mode, dynamic=False), step

    def __call__(self, *args: Any) -> Any:
        if self.compiled is None:
            return self.function(*args)
        try:
            out = self.compiled(*args)
        except Exception as error:
            if self.calls and not isinstance(error, compiler_errors()):
                raise
            # code that the compiler makes wrong fails with any error when it first runs
            reason = one_line(error)
        else:
            self.calls += 1
            return out
        out = self.function(*args)  # raises the error if it is the function's own
        self.give_up(reason)
        return out

    def guarded(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """`closure`, a forward and backward pass. If the first compiled backward pass fails, both passes run
        uncompiled instead.
        """
        if self.compiled is None or self.calls:
            return closure

        def run() -> Any:
            try:
                return closure()
            except Exception as error:
                if self.compiled is None or not self.calls:
                    raise
                reason = one_line(error)  # the error itself holds on to the memory of the failed pass
            self.compiled = None
            out = closure()  # raises the error if it is the function's own
            self.give_up(reason)
            return out

        return run

    def give_up(self, reason: str) -> None:
        if self.required:
            raise UserError(f"trainer.compile failed: {reason}. Use trainer.compile=off.")
        self.compiled, self.given_up = None, reason
        self.tell(f"speed: not compiled after all ({reason})")

    def record(self) -> dict[str, Any]:
        """For result.json."""
        return {"compiled_calls": self.calls, "from_step": self.from_step, "given_up": self.given_up}
