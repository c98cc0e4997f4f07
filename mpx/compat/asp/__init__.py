"""2:4 pruning with the interface of apex.contrib.sparsity.ASP: change the import, keep the script.

    from mpx.compat import ASP                      # was: from apex.contrib.sparsity import ASP
    ASP.prune_trained_model(model, optimizer)
    … keep training; pruned weights, their gradients at each step and their optimizer state stay exactly zero

Interface, defaults, eligibility and checkpoints are those of NVIDIA apex, apex/contrib/sparsity/asp.py. The
masks are mpx.sparsity's, on CPUs and GPUs; of candidates with equal sums of magnitudes they may choose others
than apex does. Differences from apex:

- Masks are enforced by torch's step hooks; optimizer.step is not replaced. A closure's gradients are masked
  after each evaluation. Zeros are selected, not multiplied, so infinite and NaN gradients become zero too.
- The optimizer state of pruned weights is also zeroed, and several optimizers are allowed. An optimizer that
  moves pruned weights without gradients is refused after its first step.
- The FP32 master weights of mpx.compat.amp (O2) are masked too, in either order of initialisation.
- model.state_dict() has apex's mask buffers, and loading them restores the masks. A plain state_dict loads as
  well; ASP.compute_sparse_masks() then finds the masks of pruned weights again.
- A model may be initialised again, and so may another one; ASP's methods act on the newest.
  init_model_for_pruning returns the model's own Pruning, which has the same methods.
- Every data type needs size(0) % 8 == 0 and size(1) % 16 == 0; subclasses of the listed layers count.
- Permutation needs one batch, example_input=, and a model that amp.initialize has not changed yet. It applies
  to m4n2_1d only. Copies of the weights from before it, such as averages, keep the old order of channels.
- Errors are mpx.errors.UserError (a ValueError).

api.py has ASP and the choice of the weights, pruning.py the pruning of one model.
"""

from mpx.compat.asp.api import ASP
from mpx.compat.asp.pruning import Pruning

__all__ = ["ASP", "Pruning"]
