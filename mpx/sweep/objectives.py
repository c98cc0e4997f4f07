"""The objectives that a job returns to a search (hydra-optuna-sweeper): accuracy and throughput, higher is better."""

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from mpx.compare.run import judged_by_record
from mpx.errors import UserError

Objectives = tuple[float, float] | float | None


def objectives(report: dict[str, Any], direction: Any) -> Objectives:
    """(accuracy, samples per second) if the sweeper has two directions, accuracy if it has one, None without a result.

    The accuracy is the run's metric on the validation split, because a search must not see the test split; negative if it must fall.
    """
    if report["status"] != "completed":
        return None
    metrics, speed = report["record"]["metrics"], report["record"]["speed"]
    judged = judged_by_record(report["record"])
    value = metrics.get(judged.name.replace("test/", "val/"))
    if value is None:  # the job ended before its first validation
        return None
    accuracy = judged.sign * value
    several = isinstance(direction, Sequence) and not isinstance(direction, str)
    return (accuracy, speed["train_samples_per_s"]) if several else accuracy


def check_direction(sweeper: DictConfig) -> None:
    """Raise UserError for a search that would look for the worst, as hydra-optuna-sweeper does by default, or for something else."""
    given = sweeper.get("direction")
    if given is None:
        return
    one = isinstance(given, str) or not isinstance(given, Sequence)
    names = [getattr(direction, "name", direction) for direction in ([given] if one else given)]
    if names != ["maximize"] * (1 if one else 2):
        written = names[0] if one else f"[{','.join(map(str, names))}]"
        raise UserError(
            f"hydra.sweeper.direction={written}: of the accuracy, minus a metric that should fall, and samples/s, more is better. "
            "Use maximize for the first alone, or [maximize,maximize]."
        )
