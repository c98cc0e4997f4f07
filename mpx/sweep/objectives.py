"""The objectives that a job returns to a search (hydra-optuna-sweeper): accuracy and throughput, higher is better."""

from collections.abc import Sequence
from typing import Any

Objectives = tuple[float, float] | float | None


def objectives(report: dict[str, Any], direction: Any) -> Objectives:
    """(accuracy, samples per second) if the sweeper has two directions, accuracy if it has one, None without a result.

    The accuracy is the validation split's (for language models minus the perplexity), because a search must not see the test split. That of
    a project is its metric, or minus a metric that should fall.
    """
    if report["status"] != "completed":
        return None
    metrics, speed = report["metrics"]["metrics"], report["metrics"]["speed"]
    if (own := report["metrics"].get("metric")) is not None:
        value = metrics.get(own["name"])
        accuracy = -value if value is not None and own["goal"] == "min" else value
    else:
        accuracy = -metrics["val/perplexity"] if "val/perplexity" in metrics else metrics.get("val/accuracy")
    if accuracy is None:  # the job ended before its first validation
        return None
    several = isinstance(direction, Sequence) and not isinstance(direction, str)
    return (accuracy, speed["train_samples_per_s"]) if several else accuracy
