"""2:4 pruning with the interface of apex.contrib.sparsity.ASP: change the import, keep the script.

    from mpx.compat import ASP                      # was: from apex.contrib.sparsity import ASP
    ASP.prune_trained_model(model, optimizer)
    … keep training; pruned weights, their gradients at each step and their optimizer state stay exactly zero

Interface, defaults and eligibility are those of NVIDIA apex, apex/contrib/sparsity/asp.py and sparse_masklib.py. With
allow_permutation=False the m4n2_1d masks equal apex's, even for equal sums. It runs on CPUs and GPUs. Differences from apex:

- Masks are enforced by torch's step hooks; optimizer.step is not replaced. A closure's gradients are masked after each evaluation.
  Zeros are selected, not multiplied, so infinite and NaN gradients become zero too, and no -0 appears.
- Several optimizers are allowed. A step masks the weights of its own optimizer, and the weights that no optimizer has.
- The optimizer state of pruned weights is also zeroed. FP32 master weights of mpx.compat.amp (O2) are masked too, in either order of
  initialisation.
- Masks are not buffers: model.state_dict() keeps its plain keys. ASP.state_dict() and ASP.load_state_dict() save and load the masks.
  masks_in_state_dict=True writes apex's mask buffers. Loading a state_dict with such buffers into an initialised model applies its masks.
- Weights of a plain state_dict that already have the pattern count as pruned: when it is loaded into an initialised model, or at the first
  step, their zeros become the masks, and one line says so. ASP.restore_pruned_weights() switches that off. Dense, zero and identity
  initialisations do not count as pruned.
- Infinite and NaN weights rank above finite ones, so that pruning does not hide them.
- Several models are allowed: init_model_for_pruning returns the model's own Pruning, and every method accepts model=. The default is the
  model initialised last. Initialising a model again starts it afresh.
- Every data type needs size(0) % 8 == 0 and size(1) % 16 == 0; subclasses of the listed layers count.
- Permutation needs one batch. Without example_input= mpx guesses it from the first layers; if no guess runs or the model cannot be
  traced, one line says so. Permutation applies to m4n2_1d only. One line counts the permuted weights.
- Copies of the weights from before the permutation (averages, teachers) keep the old channel order: ASP.permute_copies(copy) reorders
  them.
- Errors are mpx.errors.UserError (a ValueError).

api.py has ASP, and pruning.py the pruning of one model. eligible.py and calculators.py choose weights and masks, enforce.py applies the
masks at each step, checkpoints.py saves them, and adopting.py infers them from pruned weights. permuting.py reorders channels before the
pruning, with a batch from guessing.py; before_amp.py undoes mpx.compat.amp's initialisation meanwhile.
"""

from mpx.compat.asp.api import ASP
from mpx.compat.asp.pruning import Pruning

__all__ = ["ASP", "Pruning"]
