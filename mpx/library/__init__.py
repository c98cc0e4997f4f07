"""The parts of mpx that stand alone in any Lightning Trainer: `mpx.Precision`, `Sparsity`, `Throughput`, `Numerics`, `Record`.

    precision.py  the plugin, by the name of a mode
    sparsity.py   the callback that prunes, by the name of a pattern
    record.py     the callback that writes a run's result.json
    parts.py      what the parts of a Trainer have measured, in the form of result.json
    checked.py    the rules of their arguments

`python -m mpx.train module._target_=…` (mpx/training/project.py) builds its Trainer from the same parts.
`mpx.Throughput` and `mpx.Numerics` are those of mpx/measure/ and mpx/precision/.
"""
