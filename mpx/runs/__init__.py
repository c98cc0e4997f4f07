"""One run has one folder: its name, its lock, its checkpoints and its record.

result.py       the files that others read: result.json, curves.csv and predictions.json; the metric by which
                a run is judged
name.py         what the command asks for, and the name of its setting, which names the folder
folder.py       finds or makes the folder by the rules of if_exists=, and locks it
signals.py      one flag for the signals that end a run
checkpoint.py   saves best.ckpt and last.ckpt, also after a signal
history.py      checks what a run continues from; the random states
inputs.py       hashes of the files of a user's data, code and weights
weights.py      reads weights, which mpx or others saved
"""
