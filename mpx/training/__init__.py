"""What a run says while it trains: logging.py to TensorBoard, progress.py on the terminal."""
