"""What `python -m mpx.bench` measures. Each benchmark is a file with COLUMNS and measure(device, size, announce) -> rows.

work.py checks and times a call; conv_layers.py, conv_plans.py, sparse_gemm.py and mask_and_prune.py make some of the calls.
"""
