"""Number formats, precision modes, loss scaling, emulation, and which format each operation really ran in.

formats.py, modes.py                   what each format can hold, what each mode promises
plugin.py                              a mode, in Lightning: autocast or emulation, loss scaling (scaling.py), skipped steps
switches.py, tf32.py, rnn.py, fp8.py   what a GPU must be told, or given, beyond autocast
emulate.py                             a format that the device lacks: cast as in autocast.py, rounded as in rounding.py, attention.py,
                                       lstm.py (with squash.py), recurrent.py and fp8.py
audit.py                               what really ran: ops.py has the operations, kernels.py the names of a GPU's kernels
numerics.py                            what the format does to gradients, as gradients.py counts it
"""
