"""Number formats, precision modes, loss scaling, emulation, and the format in which each operation ran.

formats.py, modes.py                   what each format can hold, what each mode promises
plugin.py                              a mode as Lightning's plugin: autocast or emulation, loss scaling (scaling.py), skipped steps
                                       (skips.py)
switches.py, tf32.py, rnn.py, fp8.py   what a mode needs on a GPU beyond autocast
emulate.py                             a format that the device lacks: autocast.py casts; rounding.py, attention.py, fp8.py, recurrent.py
                                       and lstm.py (with squash.py) round
recorder.py                            records the operations of a step; ops.py lists those that multiply, kernels.py reads kernels' names.
                                       audit.py and mpx.measure.operations read the records
numerics.py                            what the format does to gradients, counted by gradients.py
plugin_mode.py                           which mode a plugin of Lightning's is

A new mode needs a line in MODES, its name in mpx/settings/fields.py and mpx/compare/control.py, also in mpx/settings/check.py if it scales
the loss, a file in conf/precision/, a line in docs/precision.md, and its name in README.md and in the docstring of mpx.Precision.
"""
