"""The report of a run: one HTML file with its figures, its timeline and its memory, which needs nothing else to be read."""
