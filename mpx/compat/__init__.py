"""Drop-in successors of code that NVIDIA apex deleted or left unmaintained. Needs torch alone.

from mpx.compat import amp
"""
