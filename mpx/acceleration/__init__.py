"""Train at the hardware's limit: decide which accelerations are safe and pay off for this run, and apply them.

decide.py      gathers the facts about model, precision and run that the choice depends on
choice.py      chooses among CUDA graphs, torch.compile, cuDNN's search and channels_last, and says why
payoff.py      does compiling pay? what it costs and saves, as typical or as measured on this machine
layout.py      can the model be in channels_last?
apply.py       puts the choice into effect
graph.py       records the whole training step once and replays it; repeatable.py: does a replay do all that the step does?
compiled.py    torch.compile of the loss, with a fallback
search.py      cuDNN's search among its algorithms
"""
