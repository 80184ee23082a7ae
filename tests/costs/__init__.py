"""The cost models of kernels."""
