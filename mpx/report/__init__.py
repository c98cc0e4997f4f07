"""Statistics, tables, plots and the TensorBoard layout: what a person reads."""
