"""Record a training loop that is not mpx's: the same folder and result.json as a run of mpx.train, for any PyTorch code.

recorder.py     mpx.Recorder, the context manager around the loop
record.py       what is written of it, in the process of rank 0
steps.py        the loop's optimizer steps: their samples and times, and the operations of the first
ranks.py        what the Recorders in the processes of one run know of one another
facts.py        the parts of result.json: what was measured, and what could be observed from outside
scalars.py      scalars to TensorBoard and curves.csv, which wait for the device outside the timed windows
"""
