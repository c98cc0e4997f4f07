"""How the benchmarks of `python -m mpx.bench` are shown, one file per benchmark: show(about, rows) and pictures(about, rows)."""
