"""Plans: how a job is spread over a cluster, and the mesh of coordinates that follows."""
