"""Passes from program to program, each for one feature: a kind of parallelism, casts, or the release of activations."""
