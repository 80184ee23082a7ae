"""Binding of a program to a cluster: costs, collectives and routes become the integers that the engine runs."""
