"""Constants of kernels and links fitted to measurements."""
