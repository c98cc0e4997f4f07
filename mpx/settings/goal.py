"""Whether a metric should rise or fall, where its name tells."""

import re

from mpx.errors import UserError

FALLS = re.compile(r"(^|[/_.])(loss|perplexity|mse|rmse|mae|error)(_epoch|_step)?(/dataloader_idx_\d+)?$", re.IGNORECASE)
NEGATED = re.compile(r"(^|[/_.])(neg|negative|minus)_", re.IGNORECASE)


def check_goal(metric: str | None, goal: str) -> None:
    """Raise UserError for metric_goal=max, the default, and a metric that falls: the worst epoch would be the best one."""
    if metric is not None and goal == "max" and FALLS.search(metric) and not NEGATED.search(metric):
        raise UserError(f"metric={metric} should fall, but metric_goal=max. Use metric_goal=min, or a name such as neg_loss.")
