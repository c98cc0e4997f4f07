"""Whether a metric should rise or fall, where its name tells."""

import re

from mpx.errors import UserError

OTHERS = "perplexity|ppl|nll|cross_entropy|mse|rmse|mae|mape|wer|cer|error"
FALLS = re.compile(
    rf"(^|[/.])(([^/]+[_.])?loss|((train|val|valid|validation|dev|test)_)?({OTHERS}))(_epoch|_step)?(/dataloader_idx_\d+)?$",
    re.IGNORECASE,
)
NEGATED = re.compile(r"(^|[/_.])(neg|negated|negative|minus|inv|inverse)[/_.]", re.IGNORECASE)


def falls(metric: str) -> bool:
    """Whether the name says that lower values are better."""
    return FALLS.search(metric) is not None and NEGATED.search(metric) is None


def check_goal(metric: str | None, goal: str) -> None:
    """Raise UserError for metric_goal=max, the default, and a metric that falls: the worst epoch would be the
    best one.
    """
    if metric is not None and goal == "max" and falls(metric):
        raise UserError(
            f"metric={metric} should fall, but metric_goal=max. Use metric_goal=min, or a name "
            "such as neg_loss."
        )
