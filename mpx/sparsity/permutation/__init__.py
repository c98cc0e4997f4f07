"""Channel permutation: reorder channels, without changing the function, so that 2:4 pruning keeps more
magnitude.

    report = permute_model(model, example_batch, optimizer=optimizer)    # right before the masks are computed
    report.kept_before, report.kept_after    # shares of Σ|w|, over the layers to be pruned
    report.layers                            # per layer: permuted or why not

permute.py runs the steps in order:

    trace.py, graph.py    follow the model's channels and find the groups that may change places:
                          operations.py and rules_*.py record facts through walk.py; channels.py derives the
                          groups
    search.py             divides the work between the groups, and finds the best order of a group's columns
    apply.py              reorders parameters, gradients and optimizer state, and undoes it if the model then
                          computes something else
"""

from mpx.sparsity.permutation.permute import Report, permute_model

__all__ = ["Report", "permute_model"]
