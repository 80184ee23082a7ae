"""Predictions beside what was measured: one file per kind of measurement."""
