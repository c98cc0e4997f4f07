"""The objectives that a job returns to a search (hydra-optuna-sweeper): accuracy and throughput, higher is better."""

from collections.abc import Sequence
from typing import Any

Objectives = tuple[float, float] | float | None


def objectives(report: dict[str, Any], direction: Any) -> Objectives:
    """(accuracy, samples per second) if the sweeper has two directions, accuracy if it has one, None without a result.

    The accuracy is the run's metric on the validation split, because a search must not see the test split; negative if it must fall.
    """
    if report["status"] != "completed":
        return None
    metrics, speed = report["metrics"]["metrics"], report["metrics"]["speed"]
    judged = report["metrics"].get("metric") or {"name": "test/perplexity" if "val/perplexity" in metrics else "test/accuracy"}
    accuracy = metrics.get(judged["name"].replace("test/", "val/"))
    if accuracy is None:  # the job ended before its first validation
        return None
    accuracy *= -1 if judged.get("goal") == "min" or judged["name"] == "test/perplexity" else 1
    several = isinstance(direction, Sequence) and not isinstance(direction, str)
    return (accuracy, speed["train_samples_per_s"]) if several else accuracy
