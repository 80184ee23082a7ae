"""Memory: what every rank holds, at rest and over the step."""
