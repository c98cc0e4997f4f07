"""`python -m mpx.train -m …`: every job is a process of its own with its own plain command line, and a table at the end.

So that not every job imports PyTorch again, its process is a fork of one that has (`warm`, `starter`). Hydra's launcher calls `start_child`
once per job (basic, joblib and submitit launchers alike). What the jobs tell one another lies in the sweep's own folder,
`outputs/_sweep/<process id>`, because a launcher's workers are processes too: the report of each job, and who computes on which GPU. The
folder is removed when all went well.

    child.py         one job: its command line, its environment, the GPU of its own (gpus.py), and what it said about its end
    warm.py          the process that jobs are forked from; starter.py is that process, resident.py its memory
    job_report.py    what a job leaves for the others; progress.py reads it and says how far the sweep is (size.py)
    summary.py       the beginning and the end; experiment.py: ready-made grids; objectives.py: a search; orphan.py: a killed sweep
"""

from mpx.sweep.child import start_child
from mpx.sweep.experiment import check_experiment
from mpx.sweep.job_report import in_sweep, report
from mpx.sweep.objectives import Objectives
from mpx.sweep.orphan import PARENT, end_with_parent
from mpx.sweep.summary import Summary, finish, tidy, to_the_end

__all__ = [
    "PARENT",
    "Objectives",
    "Summary",
    "check_experiment",
    "end_with_parent",
    "finish",
    "in_sweep",
    "report",
    "start_child",
    "tidy",
    "to_the_end",
]
