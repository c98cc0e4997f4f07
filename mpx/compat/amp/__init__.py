"""Mixed precision with the interface of NVIDIA's deleted apex.amp: change the import, keep the script.

    from mpx.compat import amp                                            # was: from apex import amp
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()

Interface and defaults: apex 25.05, apex/amp/frontend.py and handle.py. On a CPU FP16 is emulated (mpx.precision.emulate), because
PyTorch's FP16 matrix products on CPUs are hundreds of times slower than FP32. Differences from apex:

- O1 casts with torch.autocast inside the forward of the initialised models, instead of patching torch everywhere. Their outputs are FP32
  (`cast_model_outputs` chooses another type), so a loss computed outside runs in FP32, as in apex's loss functions.
- FP32 master weights start from the model's FP32 weights instead of their FP16 rounding. model.state_dict() returns the master weights, and
  loading it restores them, so training resumes exactly. With several processes they start from FP16 as in apex, because
  DistributedDataParallel synchronises only the FP16 weights.
- initialize may be called again for other models. Each optimizer keeps the loss scales of its own call. amp.state_dict(),
  amp.load_state_dict() and amp._amp_state refer to the newest call.
- optimizer.step(closure) works: the closure is evaluated once, then the step is made or skipped.
- An overflow found with delay_overflow_check=True counts at the next check; apex forgets it.
- After an overflow all gradients are unscaled; apex leaves those after the first infinite one scaled.
- delay_unscale=True scales the unscaled gradients of earlier passes before adding them; apex adds them as if they were scaled.
- FP16 weights in O1 (allow_incoming_model_not_fp32) need a GPU for recurrent layers.
- Errors are mpx.errors.UserError (a ValueError).

As in apex, a fixed loss scale never skips a step, so infinite gradients reach the weights. As in apex, O2's optimizer.zero_grad() leaves
zeros instead of None, a step clears the gradients of master weights, and gradients from before initialize or add_param_group do not reach
master weights.

Scripts also use internal names of apex. These names work:

- amp.init; of its handle, and of _amp_state.handle in O1: is_active, _deactivate, _disable_casts, has_cache, cache, _clear_cache, verbose.
- amp._amp_state: loss_scalers, opt_properties and handle (hasattr is False before initialize), verbosity, hard_override,
  allow_incoming_model_not_fp32. `from mpx.compat.amp._amp_state import` _amp_state, master_params, maybe_print, warn_or_err.
- amp._amp_state.loss_scalers[0]: loss_scale(), _loss_scale, dynamic, _unskipped, _scale_seq_len, _min_loss_scale, _max_loss_scale,
  _has_overflow, _overflow_buf, clear_overflow_state(), update_scale().
- optimizer._amp_stash: all_fp16_params, all_fp32_params, all_fp32_from_fp16_params, all_fp32_from_fp32_params,
  params_have_scaled_gradients, lazy_init_called. optimizer: _amp_lazy_init(), _lazy_init_maybe_master_weights(),
  _master_params_to_model_params().

These names raise a one-line error: amp.lists.functional_overrides, tensor_overrides and torch_overrides; a handle's scale_loss and
wrap_optimizer. Reading or setting any other name raises AttributeError: unscale and unscale_with_stashed of a loss scaler, fp16_groups and
the other groups of a stash, _prepare_amp_backward and _post_amp_backward of an optimizer.

frontend.py has initialize: properties.py checks a level and its overrides, session.py keeps what was decided. casting.py casts weights,
forward.py calls the model, casts.py casts around its operations (everywhere.py: outside a model, too; functions.py and lists.py: by the
user's word). handle.py has scale_loss, with scaler.py; optimizers.py and stash.py give an optimizer master weights. _amp_state.py has the
names that scripts read.
"""

from mpx.compat.amp import lists
from mpx.compat.amp._amp_state import _amp_state, master_params
from mpx.compat.amp.casts import disable_casts
from mpx.compat.amp.everywhere import init
from mpx.compat.amp.frontend import initialize, load_state_dict, state_dict
from mpx.compat.amp.functions import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from mpx.compat.amp.handle import scale_loss

__all__ = [
    "_amp_state",
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "lists",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]
