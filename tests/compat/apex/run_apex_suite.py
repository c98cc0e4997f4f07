"""apex's own tests of its amp, tests/L0/run_amp, unchanged against mpx.compat.amp:

$ python tests/compat/apex/run_apex_suite.py CHECKOUT [--cpu]

CHECKOUT is one of NVIDIA's apex from before amp's removal (tag 25.05); --cpu as in stand_in.py. Every test
has to pass except those in DIFFERENT, which have to fail. Tests of apex's compiled kernels (amp_C) skip
themselves. The exit status is 1 for any other outcome.
"""

import sys
import unittest
import warnings
from pathlib import Path

import torch
from on_cpu import OnCPU
from stand_in import stand_in

DIFFERENT = {
    "test_basic_casts.TestTensorCasts.test_cpu_is_float": "apex casts to FP32 in Tensor.cpu(); "
    "torch.autocast leaves the type",
    "test_promotion.TestPromotion.test_inplace_exp_is_error_for_half": "apex refuses exp_ of an FP16 "
    "tensor; torch.autocast computes it",
}


class Seeded(unittest.TextTestResult):
    """test_loss_scale_decrease draws a factor that is too near to zero for an overflow one time in ten, with
    apex too.
    """

    def startTest(self, test: unittest.TestCase) -> None:
        torch.manual_seed(0)
        super().startTest(test)


def main(checkout: Path, *, cpu: bool) -> int:
    if cpu:
        OnCPU().__enter__()
    stand_in(checkout)
    warnings.simplefilter("ignore")  # of PyTorch, about apex's test code
    folder = checkout / "tests" / "L0" / "run_amp"
    sys.path.insert(0, str(folder))
    suite = unittest.defaultTestLoader.discover(str(folder), top_level_dir=str(folder))
    result = unittest.TextTestRunner(resultclass=Seeded, stream=sys.stdout).run(suite)
    failed = {test.id() for test, _ in [*result.failures, *result.errors]}
    for test in sorted(failed & DIFFERENT.keys()):
        print(f"fails as listed  {test}: {DIFFERENT[test]}")
    for test in sorted(failed - DIFFERENT.keys()):
        print(f"FAILS            {test}")
    for test in sorted(DIFFERENT.keys() - failed):
        print(f"PASSES, AND IS LISTED  {test}")
    passed = result.testsRun - len(failed) - len(result.skipped)
    print(
        f"{passed} passed, {len(failed)} failed ({len(DIFFERENT)} are listed), {len(result.skipped)} "
        "need amp_C"
    )
    return int(failed != DIFFERENT.keys() or not passed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), cpu="--cpu" in sys.argv[2:]))
