"""differences.csv: each setting's difference to its control with both intervals and the decision, at full precision, for a spreadsheet.

With a plan of looks, seeds and diverged count the seeds that the decision rests on, as the difference does.
"""

from mpx.compare.comparison import Comparison, Group, Row
from mpx.compare.results import written
from mpx.csv_file import to_text

NAME = "differences.csv"
DECISION = ("difference", "low", "high", "p", "p_holm", "more_seeds")  # fields of Decision
COLUMNS = (
    "model", "data", "control", "setting", "metric", "seeds", "diverged", *DECISION, "population_low", "population_high",
    "population_reason", "margin", "margin_is", "margin_for", "confidence", "method", "verdict", "reason",
)  # fmt: skip


def to_csv(comparison: Comparison) -> str:
    """A header, and one row per setting that is compared with a control. Unknown values are empty."""
    rows = ((row, group) for group in comparison.groups for row in group.rows if row.decision is not None)
    return to_text(COLUMNS, (_row(row, group, comparison) for row, group in rows))


def _row(row: Row, group: Group, comparison: Comparison) -> dict[str, str]:
    decision, there = row.decision, row.decision.population
    found = {name: getattr(decision, name) for name in (*DECISION, "method", "verdict", "reason")}
    found |= {"model": group.model, "data": group.data, "control": group.control, "setting": row.setting, "metric": group.metric.name}
    counted = [run for run in row.runs if decision.look is None or run.seed < decision.look.seeds]
    found |= {
        "seeds": len(counted),
        "diverged": sum(run.status == "diverged" for run in counted),
        "margin_is": "relative" if group.metric.relative else "absolute",
    }
    found |= {name: getattr(comparison, name) for name in ("margin", "margin_for", "confidence")}
    found |= {f"population_{name}": value for name, value in vars(there).items()} if there is not None else {}
    return {name: written(value) for name, value in found.items()}
