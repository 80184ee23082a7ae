"""Validation of predictions against measurements: one module per kind of measurement."""
