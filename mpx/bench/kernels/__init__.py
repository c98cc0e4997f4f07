"""What `python -m mpx.bench` measures, one file per benchmark: COLUMNS, and measure(device, size, announce) -> rows."""
