"""Benchmarks that time kernels on a GPU."""
