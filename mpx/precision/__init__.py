"""Number formats, precision modes, loss scaling, emulation, and the format in which each operation ran.

formats.py, modes.py      the range and precision of each format; the formats that each mode promises
plugin.py                 a mode as Lightning's plugin: its passes (computing.py), loss scaling (scaling.py),
                          optimizer steps on scaled gradients (steps.py)
lightning_precision.py    mpx.Precision, the plugin for any Lightning Trainer
switches.py, fp8.py       what a mode needs on a GPU beyond autocast, with BFloat16RNN of recurrent.py
emulate.py                emulates a format that the device lacks: autocast.py casts; attention.py, fp8.py and
                          recurrent.py round, by formats.py
audit.py                  compares the operations of a step with the mode; ops.py lists those that multiply,
                          kernels.py interprets the names of kernels
numerics.py               samples gradients that vanish or overflow in the format; gradients.py counts them

A new mode needs a line in MODES, its name in mpx/settings/fields.py, mpx/compare/groups.py and words.py, also
in mpx/settings/check.py if it scales the loss, a file in conf/precision/, a line in docs/precision.md, and
its name in README.md and in the docstring of mpx.Precision.
"""
