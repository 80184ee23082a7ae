"""Costs: how long a kernel takes on a GPU, and which model says so."""
