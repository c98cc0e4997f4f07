"""Measure throughput, memory, FLOPs and the environment of a run, and find its bottleneck.

every run       windows.py times steps, and throughput.py calls it during a Lightning training; batches.py counts a batch's samples.
                first_step.py runs the FLOP counter of flops.py. memory.py: peak memory; environment.py, devices.py: versions and hardware;
                exclusive.py: whether another program used the device
profile=true    profile.py runs the phases of a profile, and profile_plan.py decides when it begins. steady.py times steps, traced_steps.py
                traces them (trace.py reads the file), operations.py records them. findings.py joins the results, and bound.py decides
                what limits the run
mpx.bench       matmul.py and timing.py, the base of mpx/bench/kernels/
limits          peaks.py: vendors' figures; ceilings.py: mpx.bench's figures of this machine, and MFU; limits.py: limits of one operation
"""
