"""Stands in for a CUDA graph on a CPU more strictly than again.py: repeats the recorded operations on the
memory that they used.

No Python of the step runs again. Learning rates are numbers on a CPU, so a tape holds that of its recording.
"""

import torch
from again import Again
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, out))
        return out


class Tape(Again):
    def record(self, step, beside=None):
        with Operations() as operations:
            step()  # a real recording would run nothing yet
        return Played(operations.calls)


class Played:
    def __init__(self, calls):
        self.calls, self.done = calls, True

    @torch.no_grad()
    def replay(self):
        if self.done:
            self.done = False
            return
        for function, args, kwargs, before in self.calls:
            after = function(*args, **kwargs)
            for old, new in zip(_tensors(before), _tensors(after), strict=True):
                if old.data_ptr() != new.data_ptr():  # neither a view nor written in place
                    old.copy_(new)

    def reset(self):
        self.calls = None


def _tensors(out):
    return [
        value
        for value in (out if isinstance(out, (tuple, list)) else [out])
        if isinstance(value, torch.Tensor)
    ]
