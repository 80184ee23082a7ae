"""Binding: a program meets a cluster. Costs, collectives and routes become integers; what is left has no meaning."""
