"""Channel permutation: reorder channels, without changing the function, so that 2:4 pruning keeps more magnitude."""
