"""Simulation of a scenario, and the result with its metrics, costs and network."""
