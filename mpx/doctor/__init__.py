"""`python -m mpx.doctor`: what this machine can do, and how to get what is missing. It asks the functions that training and serving ask.

machine.py     hardware, drivers, versions, space for runs; whether PyTorch can be imported at all
training.py    precision modes and accelerations
serving.py     number formats with their backends, and 2:4 kernels
packages.py    launchers of sweeps, and optional packages
"""
