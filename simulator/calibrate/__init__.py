"""Calibration: constants of kernels and links fitted to measurements."""
