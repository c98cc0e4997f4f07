"""`python -m mpx.bench` (__main__.py): kernels/ measures, show/ prints and draws, each with one file for each what=."""
