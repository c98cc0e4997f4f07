"""What a run is on disk: result.json, curves.csv, predictions.json, TensorBoard's events.

result.py     result.json: its parts before a run has begun, and how it is written
files.py      curves.csv and predictions.json
"""
