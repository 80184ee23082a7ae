"""Cost models: time of a kernel on a GPU and of a collective on a fabric, without contention, with provenance."""
