"""`python -m mpx.bench` (__main__.py): kernels/ measures, show/ prints and draws. Each has one file per what=."""
