"""Predicted beside measured: one module per kind of measurement."""
