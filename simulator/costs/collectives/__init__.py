"""Time of collectives without contention: measured curves, theory, and the choice of the library."""
