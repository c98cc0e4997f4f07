"""Where emulated FP16 casts: PyTorch's own lists, and what its autocast for CUDA does to tensors that say
they are on such a device.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from mpx.precision.autocast import TO_16_BITS, TO_FP32, TO_THE_WIDEST, WITHIN
from mpx.precision.emulate import Emulate

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {
    "AT_FORALL_LOWER_PRECISION_FP": TO_16_BITS,
    "AT_FORALL_FP32": TO_FP32,
    "AT_FORALL_FP32_SET_OPT_DTYPE": TO_FP32,
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": TO_FP32,
    "AT_FORALL_PROMOTE": TO_THE_WIDEST,
}


def header_lists() -> dict[str, set[str]]:
    text = HEADER.read_text()
    found = {}
    for macro in LISTS:
        body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*\n)", text).group(1)
        found[macro] = set(re.findall(r"_\((?:ADD_NS\()?(\w+)", body))
    return found


def test_lists_are_pytorchs():
    found = header_lists()
    assert all(len(names) > (1 if "SIGNATURE" not in macro else 0) for macro, names in found.items())
    assert found["AT_FORALL_LOWER_PRECISION_FP"] == TO_16_BITS
    fp32 = set().union(*(found[macro] for macro, ours in LISTS.items() if ours is TO_FP32))
    assert fp32 == TO_FP32
    assert found["AT_FORALL_PROMOTE"] == TO_THE_WIDEST


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """PyTorch's own, without a warning where there is no such device."""
    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


def types_on_cuda(function, args) -> list[torch.dtype]:
    """Of the results, as PyTorch derives them for tensors without data."""
    with FakeTensorMode() as mode:
        args = tree_map(
            lambda value: mode.from_tensor(value).to("cuda") if isinstance(value, Tensor) else value, args
        )
        with cuda_autocast():
            return types(function(*args))


def types(results) -> list[torch.dtype]:
    return [leaf.dtype for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]


def arguments(dtype: torch.dtype) -> Iterator[tuple]:
    """For functions whose parameters are not known: what many of them take."""
    row, square, cube, image = (
        torch.linspace(0.25, 0.75, 4**n).view(*[4] * n).to(dtype) for n in (1, 2, 3, 4)
    )
    wide = square.float()
    yield from (
        (square,),
        (square, square),
        (square, square, square),
        (row, row),
        (square, wide),
        (square, wide, wide),
        (2.0, square),
    )
    yield from (
        (square, 2.0),
        (square, 1),
        (square, row, row),
        (square, cube, cube),
        (cube, cube, cube),
        (image, image[:, :, :3, :3]),
    )
    yield from (([square, square],), ("ij,jk->ik", square, square), (square, torch.arange(4)), (square, (4,)))


def outcome(call, *args) -> list[torch.dtype] | None:
    """None: it does not take these arguments, or needs the values of tensors that have none, or there is no
    such kernel.
    """
    try:
        return call(*args)
    except Exception:
        return None


def emulated_types(function, args) -> list[torch.dtype]:
    with Emulate("fp16"):
        return types(
            function(*tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, args))
        )


def functions(*, listed: bool) -> list[tuple[str, Callable]]:
    """All that modes can see, once for each name; torch.foreach repeats the names of others. Not those that
    are no operations, and not lobpcg, which computes a thousand iterations and is compared nowhere.

    listed: those that autocast names, and what is known to consist of them.
    """
    every = (function for group in torch.overrides.get_overridable_functions().values() for function in group)
    named = {
        (f.__name__, getattr(f, "__module__", "") == "torch.foreach"): f
        for f in every
        if hasattr(f, "__name__")
    }
    ours = (
        TO_16_BITS
        | TO_FP32
        | TO_THE_WIDEST
        | {name for names in WITHIN.values() for name in names.split()}
        | {"cross_entropy"}
    )
    none = re.compile(r"^(__get__|backward|numpy|storage|lobpcg|.*[a-z]_)$")
    return [
        (name, function)
        for (name, _), function in named.items()
        if not none.match(name) and (name in ours) == listed
    ]


@pytest.mark.filterwarnings("ignore")  # functions that are deprecated, or complain of the arguments
@pytest.mark.parametrize(
    ("listed", "tries", "least"), [(True, 18, 400), pytest.param(False, 2, 700, marks=pytest.mark.slow)]
)
def test_results_have_the_types_that_cudas_autocast_gives(listed, tries, least, monkeypatch):
    # it logs each refusal at length
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
    compared, different = 0, []
    for name, function in functions(listed=listed):
        for args in (
            args for dtype in (torch.float32, torch.float16) for args in islice(arguments(dtype), tries)
        ):
            emulated = outcome(emulated_types, function, args)
            on_cuda = None if emulated is None else outcome(types_on_cuda, function, args)
            if on_cuda is None or torch.complex32 in on_cuda:  # of which a CPU knows little
                continue
            if not (name.endswith("matrix_power") and args[1] == 1):  # which gives back its operand uncast
                compared += 1
                if on_cuda != emulated:
                    different.append((name, types(args), on_cuda, emulated))
    assert not different
    assert compared > least


def test_own_code_of_a_backward_pass_computes_without_autocast():
    """As on a GPU, where autocast is off in the backward pass, but for what custom_bwd decorates."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            seen.append((gradient @ gradient.t()).dtype)
            return 2 * gradient

    class Decorated(Twice):
        backward = staticmethod(torch.amp.custom_bwd(Twice.backward, device_type="cpu"))
        forward = staticmethod(torch.amp.custom_fwd(Twice.forward, device_type="cpu"))

    seen, x = [], torch.ones(2, 2, requires_grad=True)
    with Emulate("fp16"):
        for function in (Twice, Decorated):
            function.apply(x).sum().backward()
    assert seen == [torch.float32, torch.float16]
