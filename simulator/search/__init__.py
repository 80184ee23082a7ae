"""Lower bounds of steps, for a search of the best plan."""
