"""A sweep, `python -m mpx.train -m …`: every job is a process with its own plain command line, and a table ends the sweep.

A launcher calls `start_child` once per job: Hydra's basic one or parallel.py in the process that the user started, submitit in a process
of the cluster. The job's process is a fork of a process that has already imported PyTorch. Processes share no memory, so jobs communicate
through files in the sweep's folder, `outputs/_sweep/<machine>-<process id>`: each job's report, and which job holds which GPU. The folder
is removed when no job has failed, that of a killed sweep when the next one begins.

    child.py         starts one job: its command line, its environment, its GPU (gpus.py); reads its report
    warm.py          keeps the process that jobs are forked from (starter.py, with imported.py); resident.py maps its memory into the jobs
    job_report.py    writes a job's report; progress.py reads all reports and prints the sweep's progress (size.py: its size)
    share.py         gpu_share: several jobs on each GPU; alone.py measures each setting's speed after the last job
    rounds.py        until=decided: a sweep in rounds of seeds; looks.py: what is decided, which jobs are next
    cluster.py       jobs of Slurm, or as on a cluster, by submitit; follow.py prints their progress
    summary.py       begins and ends the sweep; experiment.py: ready-made grids; objectives.py: a search
    mistakes.py      what ends a sweep before its first job; parallel.py: several jobs at once on this machine; orphan.py: a killed sweep
"""

from mpx.sweep.child import start_child
from mpx.sweep.experiment import check_experiment
from mpx.sweep.job_report import IN_USE, in_sweep, report
from mpx.sweep.objectives import Objectives
from mpx.sweep.parallel import register as register_parallel
from mpx.sweep.rounds import register as register_rounds
from mpx.sweep.share import check_single, with_launcher
from mpx.sweep.summary import Summary, finish, tidy, to_the_end

__all__ = [
    "IN_USE",
    "Objectives",
    "Summary",
    "check_experiment",
    "check_single",
    "finish",
    "in_sweep",
    "register_parallel",
    "register_rounds",
    "report",
    "start_child",
    "tidy",
    "to_the_end",
    "with_launcher",
]
