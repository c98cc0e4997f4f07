"""What the record of a user's own loop does not vouch for: its precision and its sparsity are what its setting says."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mpx.compare.run import Run
from mpx.printing import how_many

# Parts of a run's environment. PROMISED: the share of the FLOPs in the formats of its precision, where that is small. UNVERIFIED: true
# where nothing has looked at the weights for the pattern that the setting names.
PROMISED, UNVERIFIED = "as_promised", "pattern_not_verified"
MIN_PROMISED = 0.5  # share of the FLOPs in the formats of the precision below which a run is hardly of it


def doubts(record: dict[str, Any]) -> dict[str, Any]:
    """Parts of the run's environment."""
    return _promised(record) | _unverified(record)


def _promised(record: dict[str, Any]) -> dict[str, float]:
    """In the first step, whose autocast the loop may have forgotten."""
    audit = record["precision"].get("audit") or {}
    shares, flops = audit.get("as_promised") or {}, Counter()
    for row in audit.get("operations") or ():
        flops[row["kind"]] += row["flops"]
    total = sum(flops[kind] for kind in shares)
    if not total:
        return {}
    share = sum(shares[kind] * flops[kind] for kind in shares) / total
    return {PROMISED: share} if share < MIN_PROMISED else {}


def _unverified(record: dict[str, Any]) -> dict[str, bool]:
    """A Recorder without a model knows the sparsity from the setting alone. If it cannot verify a pattern, the record has why."""
    named, found = record["setting"]["sparsity"], record["sparsity"]
    unknown = found.get("verified") is None and "verified_reason" not in found
    return {UNVERIFIED: True} if named != "dense" and unknown else {}


def notes_on_doubts(runs: Sequence[Run], completed: Sequence[Run]) -> list[str]:
    """runs: of one setting."""
    found = []
    if shares := [run.environment[PROMISED] for run in runs if PROMISED in run.environment]:
        of_runs, least = f"{len(shares)} of {how_many(len(runs), 'run')}", f"{100 * min(shares):.2g} %"
        found.append(f"{of_runs} had only {least} of the first step's arithmetic in the formats that {runs[0].precision} means")
    if unknown := sum(UNVERIFIED in run.environment for run in completed):
        of_runs = f"{unknown} of {how_many(len(completed), 'completed run')}"
        found.append(f"{runs[0].sparsity} was not verified in {of_runs}; give mpx.Recorder(model=…)")
    return found
