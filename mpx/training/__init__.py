"""One run: objects built in order, trained by Lightning, recorded.

outcome.py    takes a checked configuration to result.json and an exit code
fit.py        the story of a run; assemble.py: four builders of its objects, each whole from those before it
project.py    the same for a module of the user's own; one_lightning.py: `import lightning` as well as
              `pytorch_lightning`
optimizer.py (with the schedule), ema.py, pruning.py, measuring.py, module.py, callbacks.py,
trainer.py (with the devices): those objects
logging.py    scalars to TensorBoard, and to curves.csv
record.py     what a run leaves: result.json's parts, TensorBoard's final values, the closing tables
"""
