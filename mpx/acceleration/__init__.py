"""Train at the hardware's limit: decide what is safe and pays for this run, and apply it.

decide.py      the facts about model, precision and run that a choice depends on
choice.py      from the facts to which of CUDA graphs, torch.compile, cuDNN's search and channels_last a run uses, and why
apply.py       lays the model out, and makes the means to run its steps
graph.py       the whole training step, recorded once and replayed; repeatable.py: whether a replay does all that the step does
compiled.py    torch.compile of the loss, with a way back
search.py      cuDNN's search among its algorithms
"""
