"""Throughput, memory, FLOPs, peaks and the environment: what is measured, and how."""
