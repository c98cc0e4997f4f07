"""`python -m mpx.deploy` (__main__.py): a finished run, or weights of one's own, as they would be served, measured.

jobs.py        the runs, formats and weights of one call, one after another
record.py      which runs can be served, from their files alone; deploy.json
build.py       the trained model with its data, then in the number format of serving; fold.py: batch norm into convolutions,
               attention.py: attention into layers
products.py    a weight times rows, by each of a GPU's kernels: 16 bits, INT8, FP8, 2:4; layers.py: a Linear or Conv2d made of one
kernels.py     which kernels can serve a layer; table.py: how fast each is; algorithms.py: cuSPARSELt's fastest algorithm for one
calibrate.py   the range of each layer's inputs, for 8 bits; finetune.py: training with rounded operands; seen.py: watching layers
backends.py    ways to call a model: eager, compiled, recorded in a CUDA graph; onnx.py: by ONNX Runtime
measure.py     latency, throughput, accuracy of what is served
choose.py      kernels and backend: the fastest as a whole
export.py      files that need no mpx: safetensors, pt2, ONNX
serve.py       puts these together: the fastest way to serve one run in one format
show.py        the tables; card.py: the model card

A new backend needs its name in mpx/settings/deploy.py, where it is missing in `lacking` and what calls a model in `Callers` (backends.py),
its size in serve.py if it makes a file, and what it is in conf/deploy.yaml (comment and help) and docs/deploy.md.
"""
