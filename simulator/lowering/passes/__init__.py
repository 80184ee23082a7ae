"""Passes: each takes a program and returns one, and knows one kind of parallelism."""
