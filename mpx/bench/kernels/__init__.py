"""What `python -m mpx.bench` measures. Each benchmark is a file with COLUMNS and measure(device, size, announce) -> rows."""
