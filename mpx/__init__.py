"""mpx: which precision and sparsity setting is fastest on this machine, at no loss of accuracy?"""

__version__ = "0.1.0"
