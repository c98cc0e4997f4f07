"""One run: objects built in order, trained by Lightning, recorded.

fit.py         the story of a run; assemble.py builds its objects, each whole from those before it
devices.py, schedule.py, optimizer.py, loss.py, ema.py, tta.py, pruning.py, measuring.py, module.py, trainer.py: those objects, in order
project.py     the same for a module of the user's own, which own.py makes; own_speed.py: what speed=auto can do for it
tasks.py       what a task is judged by
compiling.py   times the first steps, then compiles the others if that pays
last_validation.py: validates the weights with which a run ends, and sees whether they are replaced
continued_epoch.py: says which means of a project are of a part of an epoch
plateau.py     a scheduler's steps that a continued run would leave out
logging.py     scalars to TensorBoard, and to curves.csv (mpx/record/files.py); progress.py: lines and bar on the terminal
meters.py      loss and metrics over all samples of a split, and which test samples are right
alone.py       the speed of a setting by itself, for a sweep whose jobs share a device
record.py      what a run leaves: result.json's parts, TensorBoard's final values, the closing tables
"""
