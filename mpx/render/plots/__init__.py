"""The pictures of a report, one file per picture. draw.py draws those of a group, parallel.py those of all groups in several processes."""
