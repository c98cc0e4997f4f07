"""Pruning: patterns (which values stay), layers (what is pruned and why not), and the recipe that runs beside training."""
