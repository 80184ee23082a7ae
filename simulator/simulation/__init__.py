"""Run a scenario, and ask the result."""
