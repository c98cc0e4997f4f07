"""What a run says while it trains: logging.py to TensorBoard and to curves.csv (curves.py), progress.py on the terminal."""
