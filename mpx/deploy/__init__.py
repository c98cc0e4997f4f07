"""`python -m mpx.deploy` (__main__.py): a finished run as it would be served, measured.

record.py      which runs can be served, from their files alone; deploy.json
build.py       the trained model with its data, then in the number format of serving
sparse.py      2:4 layers: which there can be, and which pay; linear.py: one of them
backends.py    ways to call a model: eager, compiled, recorded in a CUDA graph
measure.py     latency, throughput, accuracy of what is served
serve.py       puts these together: the fastest way to serve one run in one format
show.py        the tables
"""
