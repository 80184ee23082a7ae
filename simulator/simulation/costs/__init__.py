"""What the kernels and collectives of a run cost, and how far to trust that."""
