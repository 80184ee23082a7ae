"""Passes: each takes a program and returns one, and adds one thing: a kind of parallelism, casts, the release of activations."""
