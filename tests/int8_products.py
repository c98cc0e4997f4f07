"""Whether this CPU multiplies INT8 exactly: without VNNI, oneDNN adds pairs of products in 16 bits, which
saturate.
"""

import torch

from mpx.private.torch_kernels import int_mm

_largest = torch.full((32, 32), 127, dtype=torch.int8)
EXACT_INT8 = bool((int_mm(_largest, _largest) == 32 * 127**2).all())
