"""Channel permutation: reorder channels, without changing the function, so that 2:4 pruning keeps more magnitude.

    from mpx.sparsity.permutation import permute_model

    report = permute_model(model, example_batch, optimizer=optimizer)   # right before the masks are computed
    report.kept_before, report.kept_after                               # shares of Σ|w|, over the layers to be pruned
    report.rows()                                                       # per layer: permuted or why not

graph.py finds what may move (walk.py, channels.py, rules_*.py), objective.py and search.py (exact.py) choose the order at the cost that
budget.py allows, apply.py moves the values.
"""

from mpx.sparsity.permutation.apply import Permutation
from mpx.sparsity.permutation.graph import find_groups
from mpx.sparsity.permutation.permute import LayerReport, Report, permute_model
from mpx.sparsity.permutation.search import Found, efficacy, search
from mpx.sparsity.permutation.trace import CannotTrace, calls

__all__ = ["CannotTrace", "Found", "LayerReport", "Permutation", "Report", "calls", "efficacy", "find_groups", "permute_model", "search"]
