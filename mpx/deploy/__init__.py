"""`python -m mpx.deploy` (__main__.py) measures how a finished run, or the user's own weights, would be
served.

record.py      says from a run's files alone whether it can be served; reads and writes deploy.json
build.py       builds the trained model and its data, and converts it to the format in which it is served
prepare.py     folds batch norms into convolutions, for 8 bits measures the range of each layer's inputs, and
               computes the outputs of reference
products.py    multiplies a weight by rows with each kernel of a GPU: INT8, FP8, 2:4
kernels.py     lists the kernels that can serve a layer, times them, and replaces layers by chosen ones
algorithms.py  finds cuSPARSELt's fastest algorithm for a product
backends.py    calls a model eagerly, compiled or from a CUDA graph, and times the calls;
               onnx.py: by ONNX Runtime
choose.py      chooses by measuring which kernels and which backend serve a batch
serve.py       joins these steps for one run in one format, and answers a user's own samples
export.py      writes files that load without mpx: safetensors, pt2, ONNX
show.py        prints the tables and the verdict, and writes the model card
"""
