"""Train at the hardware's limit: decide which accelerations are safe and pay off for this run, and apply
them.

decide.py      chooses among CUDA graphs, torch.compile, cuDNN's search and channels_last, and says why
apply.py       puts the choice into effect; cuDNN's search among its algorithms
graph.py       records the whole training step once and replays it, if a replay does all that the step does
compiled.py    torch.compile of the loss, with a fallback
"""
