"""Number formats, precision modes, loss scaling, emulation, and which format each operation really ran in."""
