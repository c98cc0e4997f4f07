"""`python -m mpx.bench` (__main__.py): kernels/ measures, show/ prints and draws. Both have one file per what=."""
