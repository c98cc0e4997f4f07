"""The pictures of a report, one file per picture. `draw.py` draws those of a group; `halves.py` those of all, half of them in the process
that `parallel.py` starts."""
