"""Files of YAML, read with the place of every value and checked; whatever is wrong is told by its place."""
