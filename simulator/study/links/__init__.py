"""Links as they were measured: which they are on a cluster, what a library does over them, and how long it takes."""
