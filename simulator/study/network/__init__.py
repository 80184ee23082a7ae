"""What a step puts on the links of a cluster, and which of them its ranks wait for."""
