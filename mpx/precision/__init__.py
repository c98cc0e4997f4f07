"""Number formats, precision modes, loss scaling, emulation, and the format in which each operation ran.

formats.py, modes.py                   the range and precision of each format; the formats that each mode promises
choose.py                              the plugin that the settings name
plugin.py                              a mode as Lightning's plugin: autocast or emulation, loss scaling, which skips steps (scaling.py),
                                       advice where it skips too many (skips.py)
plugin_mode.py                         the mode of any precision plugin, mpx's or Lightning's
switches.py, tf32.py, rnn.py, fp8.py   what a mode needs on a GPU beyond autocast
emulate.py                             emulates a format that the device lacks: autocast.py casts; rounding.py, attention.py, fp8.py,
                                       recurrent.py and lstm.py (with squash.py) round
recorder.py                            records the operations of a step; ops.py lists those that multiply, kernels.py interprets the names
                                       of kernels. audit.py and mpx.measure.operations read the records
numerics.py                            samples gradients that vanish or overflow in the format; gradients.py counts them

A new mode needs a line in MODES, its name in mpx/settings/fields.py and mpx/compare/control.py, also in mpx/settings/check.py if it scales
the loss, a file in conf/precision/, a line in docs/precision.md, and its name in README.md and in the docstring of mpx.Precision.
"""
