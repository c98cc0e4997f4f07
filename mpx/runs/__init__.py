"""One run, one folder: what it is called, who may write there, and the record it leaves.

outcome.py         from a checked configuration to result.json and an exit code; mpx/training/fit.py trains in between
name.py            what the folder is called
folder.py          found or made by the rules of if_exists=, and locked
record.py          result.json; explain.py: an error in one line; signals.py, listening.py: Ctrl-C and SIGTERM
checkpoint.py      best.ckpt, last.ckpt and what a run continues from; checkpoint_writer.py, random_state.py
"""
