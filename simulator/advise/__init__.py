"""Advice: which parallelism a job or a server should use, and what would make a plan fit."""
