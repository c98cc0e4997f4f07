"""Train at the hardware's limit: which of CUDA graphs and torch.compile is safe and pays, and the step that a graph repeats."""
