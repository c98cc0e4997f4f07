"""A sweep, `python -m mpx.train -m …`: every job is a process with its own plain command line, and a table
ends the sweep.

    jobs.py      runs the jobs: on this machine by threads and a queue of GPUs; preload.py: what they fork
                 with
    cluster.py   jobs of Slurm, or as on a cluster, by submitit
    progress.py  what jobs report; the progress, the table and the exit code of a sweep
    checks.py    what is known and refused before the first job
    until.py     until=decided: a sweep in rounds of seeds
"""

from mpx.sweep.checks import check_experiment, check_single
from mpx.sweep.progress import IN_USE, Summary, exit_code, report, to_the_end
from mpx.system.environment_variables import in_sweep

__all__ = [
    "IN_USE",
    "Summary",
    "check_experiment",
    "check_single",
    "exit_code",
    "in_sweep",
    "register",
    "report",
    "to_the_end",
]


def register() -> None:
    """Let Hydra choose mpx's launcher and its sweeper."""
    from mpx.sweep import jobs, until  # NumPy and SciPy

    jobs.register()
    until.register()
