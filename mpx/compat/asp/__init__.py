"""2:4 pruning behind the interface of apex.contrib.sparsity.ASP: change the import, keep the script.

    from mpx.compat import ASP                      # was: from apex.contrib.sparsity import ASP
    ASP.prune_trained_model(model, optimizer)
    … train on; pruned weights, their gradients at a step and their optimizer state stay exactly zero

Interface, defaults and eligibility: NVIDIA apex, apex/contrib/sparsity/asp.py and sparse_masklib.py. With allow_permutation=False the
m4n2_1d masks are apex's, equal sums included. It runs on CPUs and GPUs. What differs from apex:

- Steps are masked by torch's own step hooks; optimizer.step is not replaced. A closure's gradients are masked after each evaluation.
  Zeros are written by selection: infinite and NaN gradients go as well, and no -0 appears.
- Several optimizers may be given. A step masks the weights of its own optimizer, and those that none of them has.
- Optimizer state of pruned weights is zeroed too. FP32 master weights of mpx.compat.amp (O2) are followed, whichever came first.
- Masks are no buffers: model.state_dict() keeps its plain keys. ASP.state_dict() and ASP.load_state_dict() save and load the masks.
  masks_in_state_dict=True writes apex's mask buffers. A state_dict with such buffers loads into an initialised model, and its masks
  are then in force.
- Weights of a plain state_dict that have the pattern already are taken for pruned ones: when it is loaded into an initialised model,
  or at the first step, their zeros become the masks, and one line says so. ASP.restore_pruned_weights() switches that off. Dense, zero
  and identity initialisations are not taken for pruned.
- An infinite or NaN weight is among the two that stay, so that pruning does not hide it.
- Any number of models: init_model_for_pruning returns the model's own Pruning, every method takes model=, and without it means the
  model initialised last. Initialising a model again starts it afresh.
- Every data type needs size(0) % 8 == 0 and size(1) % 16 == 0; subclasses of the listed layers count.
- Permutation needs one batch. Without example_input= it is guessed from the first layers; where no guess runs or the model cannot be
  traced, one line says so. It is made for m4n2_1d and done for no other mask. One line counts the weights that it reached.
- Copies of the weights from before the permutation (averages, teachers) have the old order of channels: ASP.permute_copies(copy)
  reorders them.
- Errors are mpx.errors.UserError (a ValueError).
"""

from mpx.compat.asp.api import ASP
from mpx.compat.asp.pruning import Pruning

__all__ = ["ASP", "Pruning"]
