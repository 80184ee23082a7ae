"""Search for the best plans of a scenario, with proven lower bounds of step times."""
