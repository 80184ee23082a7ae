"""Collectives on a cluster: the algorithm of a collective, and its uncontended time."""
