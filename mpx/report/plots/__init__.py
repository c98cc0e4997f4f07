"""The pictures of a report, one file per picture; `draw.py` draws them all."""
