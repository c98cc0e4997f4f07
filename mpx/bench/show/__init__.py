"""How `python -m mpx.bench` shows its results. Each benchmark is a file with show(about, rows) and plot(about, rows).

tables.py prints their tables.
"""
