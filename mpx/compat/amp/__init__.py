"""Mixed precision with the interface of NVIDIA's deleted apex.amp: change the import, keep the script.

    from mpx.compat import amp                                            # was: from apex import amp
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()

Interface and defaults: apex 25.05, apex/amp/frontend.py and handle.py. On a CPU FP16 is emulated
(mpx.precision.emulate), because PyTorch's FP16 matrix products on CPUs are hundreds of times slower than
FP32. Differences from apex:

- O1 casts with torch.autocast inside the forward of the initialised models, instead of patching torch
  everywhere. Their outputs are FP32 (`cast_model_outputs` chooses another type), so a loss computed outside
  runs in FP32, as in apex.
- FP32 master weights start from the model's FP32 weights instead of their FP16 rounding. model.state_dict()
  returns the master weights, and loading it restores them, so training resumes exactly. Several processes
  start from FP16 as in apex, because DistributedDataParallel synchronises only the FP16 weights.
- initialize may be called again for other models. Each optimizer keeps the loss scales of its own call.
  amp.state_dict(), amp.load_state_dict() and amp._amp_state refer to the newest call.
- nn.DataParallel is not supported; use DistributedDataParallel.
- Errors are mpx.errors.UserError (a ValueError).

As in apex, a fixed loss scale never skips a step, so infinite gradients reach the weights; O2's
optimizer.zero_grad() leaves zeros instead of None; a step clears the gradients of master weights; and
optimizer.step(closure) is refused.

The names are those of apex's documentation and test suite. Of its internal ones these work: amp.init and
`_deactivate` of its handle; amp._amp_state with handle, loss_scalers (loss_scale(), _loss_scale),
opt_properties and allow_incoming_model_not_fp32.

frontend.py has initialize and the model's new forward; casts.py casts weights, and around operations;
scale_loss.py has the backward pass; optimizers.py gives an optimizer master weights; state.py checks a level
and has the loss scales.
"""

from mpx.compat.amp.casts import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from mpx.compat.amp.frontend import init, initialize, load_state_dict, state_dict
from mpx.compat.amp.scale_loss import scale_loss
from mpx.compat.amp.state import _amp_state, master_params

__all__ = [
    "_amp_state",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]
