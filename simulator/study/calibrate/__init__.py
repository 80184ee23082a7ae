"""Measurements of one's own made into data that the simulator reads: one file per kind of measurement."""
