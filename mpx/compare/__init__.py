"""What a study comes to, from the records of its runs: which setting is fastest at no loss. Nothing here needs torch or Lightning.

runs          collect.py (result.json) or results.py (results.csv) -> Run (comparison.py); defaults.py: settings that differ unsaid
compared      control.py, names.py, groups.py: which run is compared with which control
decided       aggregate.py -> Comparison, by way of statistics.py, decisions.py, speed.py, notes.py and verdict.py
also          batch_scaling.py: speed-ups by batch size; curves.py: curves over training; commands.py: how to repeat a study;
              words.py: how figures and decisions read
__main__.py   `python -m mpx.compare`
"""
