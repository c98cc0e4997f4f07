"""What a run is on disk, and how loops that are not mpx's become runs.

parts.py      the parts of result.json that were measured
run.py        the folder, result.json and curves of a run whose loop is not mpx's
recorder.py   mpx.Recorder, a context manager around any loop; loop.py: what it measures and writes
lightning_record.py  mpx.Record, in any Lightning Trainer

mpx's own loop fills in the same parts (mpx/training/record.py). mpx/compat/transformers.py tells a Recorder
what transformers.Trainer does.
"""
