"""Simulation of a scenario, and the result with its metrics, costs and network."""

ENGINES = ("auto", "des", "heap", "replay", "compiled")
"""Engines that a user may select to run a task graph."""
MOST_STEPS = 1000
"""Largest number of consecutive training steps that a user may simulate."""
