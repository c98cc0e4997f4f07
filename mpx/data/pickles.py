"""Reading a pickle without running it: only what plain containers, bytes and numpy byte arrays need is allowed."""

import io
import pickle

from mpx.errors import UserError

# CIFAR's files name numpy's old module; numpy 2 moved it. Both names mean the same harmless constructors.
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class DataOnly(pickle.Unpickler):
    """An unpickler that refuses every global but those in ALLOWED, so a file cannot call anything."""

    def find_class(self, module: str, name: str):
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        import numpy as np

        return {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": np._core.multiarray._reconstruct}[name]


def read_pickle(content: bytes, path) -> object:
    """The object in `content`, byte strings as bytes. Raises UserError for a damaged file or one that asks for code."""
    try:
        return DataOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything: IndexError, KeyError, MemoryError, ...
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"data.root: {path} is not a data pickle ({reason}): delete the file and fetch it again") from error
