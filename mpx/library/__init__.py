"""The parts of mpx that stand alone in any Lightning Trainer: `mpx.Precision`, `Sparsity`, `Throughput`, `Numerics`, `Record`.

    precision.py  the plugin, by the name of a mode
    sparsity.py   the callback that prunes, by the name of a pattern
    checked.py    the rules of their arguments

`python -m mpx.train module._target_=…` (mpx/training/project.py) builds its Trainer from the same parts.
`mpx.Throughput`, `mpx.Numerics` and `mpx.Record` are those of mpx/measure/, mpx/precision/ and mpx/record/.
"""
