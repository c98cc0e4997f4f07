"""Does compiling pay? That depends on what it costs, what it saves in each batch, and how many batches are left.

Cost and saving are typical ones (of experiments/speed and auto) until a run has measured them on this machine. Its figures are kept beside
the compiled code, in the compiler's cache: while they are there, the code is there too, and compiling is loading.
"""

import getpass
import hashlib
import json
import math
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpx.whole_file import write_whole

COMPILE_S = {True: 30.0, False: 10.0}  # whether the model has convolutions -> seconds of compiling, nothing being cached
CACHED = 0.2  # share of these seconds where the compiler's cache has the code: Python is traced and the code is loaded
SAVES = {  # (whether the model has convolutions, format of most products) -> share of a step
    (True, "bf16"): 0.28, (True, "fp16"): 0.15, (False, "bf16"): 0.27, (False, "fp16"): 0.27, (False, "tf32"): 0.15,
}  # fmt: skip
SAVES_IN_OTHERS = 0.05


@dataclass(frozen=True)
class Figures:
    """compile_s: seconds that compiling takes. saves: the share of a step that a compiled one saves. step_ms: the device's time for an
    uncompiled step on one batch; None: not measured yet. gap_ms: from the end of a step to the next, for the batch and the host.
    known: compile_s and saves were measured on this machine; otherwise they are typical. The gaps are then part of the steps.
    """

    compile_s: float
    saves: float
    step_ms: float | None = None
    gap_ms: float = 0.0
    known: bool = False


NONE = Figures(math.inf, 0.0)  # where nothing compiles by itself


def typical(convolutions: bool, fmt: str) -> Figures:
    return Figures(COMPILE_S[convolutions], SAVES.get((convolutions, fmt), SAVES_IN_OTHERS))


def pays(figures: Figures, left: int) -> tuple[bool, str]:
    """Whether compiling pays for the `left` batches, and why, in words.

    The device may be idle in a gap because batches come slowly. A shorter step then waits longer, so a gap counts against a typical saving.
    A saving that was measured is that of steps with their gaps.
    """
    saved_s = left * max(0.0, figures.saves * figures.step_ms - figures.gap_ms) / 1e3
    source = "measured here" if figures.known else "typically"
    words = f"{left:,} batches of {figures.step_ms:.3g} ms; saves {saved_s:.3g} s and takes {figures.compile_s:.2g} s, {source}"
    return saved_s > figures.compile_s, words


class Notebook:
    """Figures of one step on this machine. key: texts of all that the step's program and speed depend on."""

    def __init__(self, *key: str):
        digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]
        self.path = compilers_cache() / "mpx" / f"{digest}.json"

    def read(self, otherwise: Figures) -> Figures:
        """What is known, else `otherwise`. A file that cannot be read counts as missing."""
        try:
            found = json.loads(self.path.read_text())
            step_ms, gap_ms = _positive(found["step_ms"]), float(found["gap_ms"])
            if found["compiled_ms"] is None:
                return Figures(otherwise.compile_s, otherwise.saves, step_ms, gap_ms)
            saves = 1 - _positive(found["compiled_ms"]) / (step_ms + gap_ms)
            return Figures(CACHED * _positive(found["compile_s"]), saves, step_ms + gap_ms, known=True)
        except (OSError, ValueError, LookupError, TypeError):
            return otherwise

    def write(self, figures: Figures, compiled_ms: float | None = None, compile_s: float | None = None) -> None:
        """A folder that cannot be written is left as it is: the next run measures again. compiled_ms: of a compiled step and its gap."""
        content = {"step_ms": figures.step_ms, "gap_ms": figures.gap_ms, "compiled_ms": compiled_ms, "compile_s": compile_s}
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(content))


def compilers_cache() -> Path:
    """The folder of torch.compile's cache. Importing torch's own function takes a second, and not every run compiles.

    Source: https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html
    """
    if (folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR")) is not None:
        return Path(folder)
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):  # in a container, the user may have no name
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def _positive(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(value)
    return value
