"""Collectives on a cluster: which algorithm serves one, and how long it takes."""
