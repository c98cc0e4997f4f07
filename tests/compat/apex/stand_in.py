"""Run a script of NVIDIA's apex with mpx.compat.amp in the place of apex.amp, which is all that changes:

$ python tests/compat/apex/stand_in.py CHECKOUT [--cpu] SCRIPT [ARGUMENT …]

CHECKOUT is one of apex from before amp's removal (tag 25.05). Everything else of apex that is plain Python
comes from there. --cpu: on a machine without a GPU, what the script puts on one stays on the CPU (see
on_cpu.py).
"""

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType


def stand_in(checkout: Path) -> None:
    """Make `import apex` find mpx.compat.amp as apex.amp. apex's own __init__ does not run: it imports the
    compiled parts.
    """
    from mpx.compat import amp

    apex = ModuleType("apex")
    apex.__spec__ = importlib.util.spec_from_loader("apex", loader=None, is_package=True)
    apex.__path__ = [str(checkout / "apex")]
    apex.amp, apex.deprecated_warning = amp, lambda message: None
    sys.modules |= {"apex": apex, "apex.amp": amp, "apex.amp._amp_state": sys.modules["mpx.compat.amp.state"]}
    # an example uses its functions; its other half, an older optimizer, reaches for more of amp's inside
    functions = checkout / "apex" / "fp16_utils" / "fp16util.py"
    spec = importlib.util.spec_from_file_location("apex.fp16_utils", functions)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])


def main() -> None:
    checkout, *arguments = sys.argv[1:]
    if arguments[0] == "--cpu":
        from on_cpu import OnCPU

        OnCPU().__enter__()
        arguments = arguments[1:]
    stand_in(Path(checkout))
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
