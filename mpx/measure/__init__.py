"""Throughput, memory, FLOPs, peaks and the environment: what is measured, and how.

every run       throughput.py, memory.py; first_step.py, in which flops.py counts; environment.py and devices.py: what it ran on
profile=true    profile.py goes through it: steady.py times steps, trace.py and operations.py look into some; findings.py joins that,
                bound.py decides what holds the run back
mpx.bench       matmul.py and timing.py, on which mpx/bench/kernels/ is built
limits          peaks.py: what vendors promise; ceilings.py: what mpx.bench measured here, and MFU; limits.py: of one operation
"""
