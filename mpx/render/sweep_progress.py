"""The progress lines of a running sweep, in plain text for logs."""

from typing import Any


def span(seconds: float) -> str:
    """A readable duration: `41 s`, `12 min`, `3 h 05 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def progress_line(
    report: dict[str, Any], *, done: int, total: int, failed: int, running: int, left: int, seconds_left: float | None
) -> str:
    """For example `job 7 completed in 41 s: 8 of 100 done, 0 failed, 4 running, 88 left, about 15 min to go`.

    report: the report of the job that has just ended.
    """
    how = "was already " + report["status"] if report["skipped"] else f"{report['status']} in {span(report['seconds'])}"
    line = f"job {report['job']} {how}: {done} of {total} done, {failed} failed, {running} running, {left} left"
    if running + left == 0 or seconds_left is None:
        return line
    return f"{line}, about {span(seconds_left)} to go"
