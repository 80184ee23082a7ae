"""Traces of PyTorch read into tables of measured kernels."""
