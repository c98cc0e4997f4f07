"""One run: objects built in order, trained by Lightning, recorded.

outcome.py    takes a checked configuration to result.json and an exit code; explain.py puts an error in one
              line
fit.py        the story of a run; assemble.py: four builders of its objects, each whole from those before it
project.py    the same for a module of the user's own; one_lightning.py: `import lightning` as well as
              `pytorch_lightning`
optimizer.py (with the schedule), tasks.py, ema.py, pruning.py, measuring.py, module.py, trainer.py (with the
devices): those objects; ends.py: callbacks at the beginning and the end of the training
compiling.py  times the first steps, then compiles the others if that pays
logging.py    scalars to TensorBoard, and to curves.csv; progress.py: lines and bar on the terminal
record.py     what a run leaves: result.json's parts, TensorBoard's final values, the closing tables
"""
