"""Train at the hardware's limit: what is safe and pays for this run, and the means.

choice.py      which of CUDA graphs, torch.compile, cuDNN's search and channels_last a run uses, and why (decide.py has the facts)
graph.py       the whole training step, recorded once and replayed; repeatable.py: whether that does all that the step does
compiled.py    torch.compile of the loss, which can be left out again
search.py      cuDNN's search among its algorithms
"""
