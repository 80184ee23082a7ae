"""The traffic of a training step on the links of a cluster, and the links that limit it."""
