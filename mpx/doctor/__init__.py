"""`python -m mpx.doctor` (__main__.py): what this machine can do, and how to get what is missing (tables.py).

It asks the functions that training and serving ask.
"""
