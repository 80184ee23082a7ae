"""Time of collectives without contention: measured curves, closed forms, and the algorithm choice of the library."""
