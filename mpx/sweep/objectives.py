"""What a sweeper that searches (hydra-optuna-sweeper) is told of a job: accuracy and throughput, higher is better."""

from collections.abc import Sequence
from typing import Any

Objectives = tuple[float, float] | float | None


def objectives(report: dict[str, Any], direction: Any) -> Objectives:
    """(accuracy, samples per second) where the sweeper has two directions, accuracy alone where it has one; None: nothing to learn from.

    The accuracy is that of the validation split (minus the perplexity, for language models): a search must not see the test split.
    """
    if report["status"] != "completed":
        return None
    metrics, speed = report["metrics"]["metrics"], report["metrics"]["speed"]
    accuracy = -metrics["val/perplexity"] if "val/perplexity" in metrics else metrics.get("val/accuracy")
    if accuracy is None:  # it ended before its first validation
        return None
    several = isinstance(direction, Sequence) and not isinstance(direction, str)
    return (accuracy, speed["train_samples_per_s"]) if several else accuracy
