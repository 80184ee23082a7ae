"""Time of kernels: one module per family."""
