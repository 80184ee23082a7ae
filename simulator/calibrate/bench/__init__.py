"""Kernels timed on a GPU."""
