"""Search for cuSPARSELt's fastest algorithm in a child process, because some algorithms hang or make CUDA
unusable for their process.

PyTorch's own search runs all algorithms in the caller's process. Here a child runs them and announces each
before it tries it. After an algorithm that ends the child, a new child continues with the next one. A child
takes 5 seconds to start, and one second for the 24 to 27 algorithms of a product (H200).
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from threading import Timer
from typing import IO, Any

import torch
from torch import Tensor

from mpx.measure.timing import elapsed
from mpx.private.torch_kernels import compress_2of4, mm_2of4
from mpx.system.launch import this_python

MAX_CHILDREN = 4  # in one search
MAX_CHILD_S = 30.0  # seconds that one child may take for one search
MAX_IDS = 64
MAX_REFUSALS = 8  # in a row; after them the search expects no further ids
CALLS, SAMPLES = 10, 5
CHILD = (*this_python(), "mpx.deploy.algorithms")


@dataclass(frozen=True)
class Problem:
    """A product of a packed weight [out, inputs] and a matrix [inputs, rows]. An algorithm's id is valid for
    one problem only.

    operand, result: names of dtypes, which differ only for 8-bit operands. bias, scaled: whether the epilogue
    adds a bias or scales rows. transposed: the result is written as [rows, out].
    """

    operand: str
    result: str
    out: int
    inputs: int
    rows: int
    bias: bool
    scaled: bool
    transposed: bool


_found: dict[Problem, int] = {}
_child: subprocess.Popen[str] | None = None


def fastest(problem: Problem) -> int:
    """The id of the fastest algorithm with correct results. Raises RuntimeError if there is none."""
    if problem not in _found:
        times: dict[int, float] = {}
        first: int | None = 0
        for _ in range(MAX_CHILDREN):
            first = None if first is None else _search(problem, first, times)
        if not times:
            raise RuntimeError("cuSPARSELt has no algorithm that works")
        _found[problem] = min(times, key=times.__getitem__)
    return _found[problem]


def stop() -> None:
    """End the child, which holds memory on the device. The next search starts a new one."""
    global _child
    if _child is not None:
        _child.kill()
        _child.communicate()
        _child = None


def _search(problem: Problem, first: int, times: dict[int, float]) -> int | None:
    """Try the ids from `first` on, and add their milliseconds to `times`. Returns None, or the id to continue
    with if the child ended.
    """
    child, problems, answers = _started()
    timer = Timer(MAX_CHILD_S, child.kill)
    timer.start()
    try:
        problems.write(json.dumps(asdict(problem) | {"first": first}) + "\n")
        problems.flush()
        for said in filter(None, map(_parsed, answers)):
            if "ms" in said:
                times[said["id"]] = said["ms"]
            elif "trying" in said:
                first = said["trying"] + 1
            else:
                return None
    except OSError:  # the child ended before it read the problem
        pass
    finally:
        timer.cancel()
    stop()
    return first


def _parsed(line: str) -> dict[str, Any] | None:
    """The child's message; None for other output, such as a library's, and for an incomplete line."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _started() -> tuple[subprocess.Popen[str], IO[str], IO[str]]:
    """(the child, its input, its output)."""
    global _child
    if _child is None:
        pipe = subprocess.PIPE
        _child = subprocess.Popen(CHILD, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    assert _child.stdin is not None
    assert _child.stdout is not None
    return _child, _child.stdin, _child.stdout


def main() -> None:
    """The child: reads one problem per line. Answers with a line before each id that it tries, one for each
    that works, and a last one.
    """
    for line in sys.stdin:
        job = json.loads(line)
        first = job.pop("first")
        for said in _trials(Problem(**job), first):
            print(json.dumps(said), flush=True)


def _trials(problem: Problem, first: int) -> Iterator[dict[str, Any]]:
    call, expected = _product(problem)
    refused = 0
    for number in range(first, MAX_IDS):
        yield {"trying": number}
        try:
            found = call(number)
            torch.cuda.synchronize()
            if _right(found, expected):
                yield {"id": number, "ms": _milliseconds(lambda number=number: call(number))}
            refused = 0
        except RuntimeError:
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                os._exit(1)  # this process cannot use CUDA any more
            refused += 1
        if refused == MAX_REFUSALS:
            break
    yield {"end": True}


def _product(problem: Problem):
    """(a function from an algorithm's id to its product of random operands, the exact product)."""
    operand, result = getattr(torch, problem.operand), getattr(torch, problem.result)

    def random(*shape: int) -> Tensor:
        plain = (
            torch.randint(-127, 128, shape, device="cuda")
            if operand == torch.int8
            else torch.randn(shape, device="cuda")
        )
        return plain.to(operand)

    weight, x = random(problem.out, problem.inputs), random(problem.rows, problem.inputs)
    weight.view(-1, 4)[:, 2:] = 0
    packed = compress_2of4(weight)
    bias = torch.randn(problem.out, device="cuda").to(result) if problem.bias else None
    scale = torch.rand(problem.out, device="cuda") * 1e-4 if problem.scaled else None
    expected = x.float() @ weight.float().t()
    expected = expected * (1 if scale is None else scale) + (0 if bias is None else bias.float())

    def call(number: int):
        found = mm_2of4(
            packed,
            x.t(),
            None if result == operand else result,
            bias=bias,
            scale=scale,
            transposed=problem.transposed,
            alg_id=number,
        )
        return found if problem.transposed else found.t()

    return call, expected


def _right(found, expected) -> bool:
    allowed = 8 * torch.finfo(found.dtype).eps
    return bool((found.float() - expected).norm() <= allowed * expected.norm())


def _milliseconds(call) -> float:
    """The time of one call in a CUDA graph. Outside a graph, the library's host code takes longer than the
    kernel.
    """
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return statistics.median(
        elapsed(graph.replay, torch.device("cuda"), 1) * 1e3 / CALLS for _ in range(SAMPLES)
    )


if __name__ == "__main__":
    main()
