"""Measure throughput, memory, FLOPs and the environment of a run, and what holds it back.

every run       windows.py times steps, throughput.py tells it about a Lightning training; memory.py; first_step.py, in which flops.py
                counts; environment.py and devices.py: what the run ran on; exclusive.py: what else used the device;
                batches.py: the samples of a batch
profile=true    profile.py goes through its states, and profile_plan.py decides when it begins. steady.py times steps, traced_steps.py
                traces them (trace.py reads the file), operations.py records them; findings.py joins the results, bound.py decides what
                holds the run back
mpx.bench       matmul.py and timing.py, on which mpx/bench/kernels/ is built
limits          peaks.py: vendors' figures; ceilings.py: mpx.bench's figures of this machine, and MFU; limits.py: of one operation
"""
