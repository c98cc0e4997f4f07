"""Measure throughput, memory, FLOPs and the environment of a run, and find its bottleneck.

every run       windows.py times steps, and throughput.py calls it during a Lightning training; batches.py
                counts a batch's samples. first_step.py runs the FLOP counter of flops.py. memory.py: peak
                memory; environment.py: versions and hardware; devices.py: this machine's accelerators;
                exclusive.py: whether another program used the device
profile=true    profile.py traces steps and decides what limits them
mpx.bench       matmul.py; and timing.py, for mpx.deploy, too
limits          ceilings.py: vendors' figures, mpx.bench's of this machine, and MFU
"""
