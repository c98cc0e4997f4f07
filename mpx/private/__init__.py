"""Private API of other libraries, one file per library or part of one. Nothing else in mpx uses any.

Each file says with which versions it is known to work, each function why no public API does the same.
tests/test_private.py calls them all, so that a version of a library which has moved something fails there,
under the name of the function.
"""
