"""Costs: how long a kernel takes on a GPU and a collective on a fabric, without contention, and what says so."""
