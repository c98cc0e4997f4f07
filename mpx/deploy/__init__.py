"""`python -m mpx.deploy` (__main__.py) measures how a finished run, or the user's own weights, would be served.

jobs.py        runs the jobs of one call in turn: each run, format and kind of weights
record.py      says from a run's files alone whether it can be served; reads and writes deploy.json
build.py       builds the trained model and its data, and converts the model to the format in which it is served
prepare.py     prepares that model for the format: folds, splits and, for 8 bits, calibrates and fine-tunes it
fold.py        folds batch norm into convolutions; attention.py and recurrent.py: split attention and LSTMs into layers
products.py    multiplies a weight by rows with each kernel of a GPU: 16 bits, INT8, FP8, 2:4; layers.py: a Linear or Conv2d made of one
kernels.py     lists the kernels that can serve a layer; kernel_times.py: times them; algorithms.py: finds cuSPARSELt's fastest algorithm
calibrate.py   measures the range of each layer's inputs, for 8 bits; finetune.py: trains with rounded operands; hooks.py: forward hooks
backends.py    calls a model eagerly, compiled, from a CUDA graph or by ONNX Runtime (onnx.py)
measure.py     measures latency, throughput and accuracy
choose.py      chooses, for each batch size, the kernels and the backend that serve the whole model fastest
export.py      writes files that load without mpx: safetensors, pt2, ONNX
serve.py       joins these steps for one run in one format
show.py        prints the tables; card.py: writes the model card; again.py: the commands in it

A new backend needs:
- its name in mpx/settings/deploy.py
- in backends.py, the reason why a machine lacks it (`lacking`), and the object that calls the model (`Callers`)
- its size in serve.py, if it makes a file
- a description in conf/deploy.yaml (comment and help) and in docs/deploy.md
"""
