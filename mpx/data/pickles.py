"""Read a pickle without running code: only plain containers, bytes and numpy arrays are allowed."""

import io
import pickle

import numpy as np

from mpx.errors import UserError, first_line


def empty_array(array_class: type, shape: tuple[int, ...], dtype: bytes) -> np.ndarray:
    """numpy's `_reconstruct`: an array that the pickle fills in its next step."""
    return np.ndarray.__new__(array_class, shape, dtype)


ALLOWED = {  # (module, name) in a file -> the object that it gets
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): empty_array,  # in files of numpy 1, such as CIFAR's
    ("numpy._core.multiarray", "_reconstruct"): empty_array,  # of numpy 2
}


class DataOnly(pickle.Unpickler):
    """An unpickler that refuses every global outside ALLOWED, so that a file cannot call anything."""

    def find_class(self, module: str, name: str):
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        return ALLOWED[module, name]


def read_pickle(content: bytes, path) -> object:
    """The object in `content`, with byte strings as bytes. Raises UserError for a damaged file or one that asks for code."""
    try:
        return DataOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything: IndexError, KeyError, MemoryError, ...
        raise UserError(f"data.root: {path} is not a data pickle ({first_line(error)}): delete the file and fetch it again") from error
