"""What the links of a cluster carried in a step, and which of them limited it."""
