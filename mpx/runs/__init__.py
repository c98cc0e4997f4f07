"""One run has one folder: its name, its lock, its checkpoints and its record.

outcome.py      takes a checked configuration to result.json and an exit code; mpx/training/fit.py trains in between
other_ranks.py  the same for a rank above 0, which writes no record
description.py  what the command asks for; name.py: the name of its setting, which names the folder
folder.py       finds or makes the folder by the rules of if_exists=, and locks it
explain.py      puts an error in one line
alone.py        a process of a sweep that measures the speed of a setting and leaves no run
ranks.py        what the processes of one run tell one another outside training; watch.py ends one that waits for another for ever;
                agreement.py: whether they hold the same training state
library_state.py: what a run called from Python puts back
signals.py      handles the signals that end a run; listening.py keeps these handlers in force while the run trains; end_signal.py asks
                the run's other processes
checkpoint.py   keeps best.ckpt and last.ckpt; checkpoint_writer.py, random_state.py
history.py      checks what a run continues from; trained_as.py: the setting of a checkpoint, which a run that trains no step needs to share
inputs.py       hashes of the files of a user's data, code and weights
weights.py      reads weights, which mpx or others saved; reading.py: a checkpoint; damage.py compares its checksums
"""
