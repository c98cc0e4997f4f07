"""The pictures of a report, one module each. draw.py draws the pictures of a group."""
