"""Hardware: GPUs, links and clusters, as frozen values over one read-only topology graph."""
