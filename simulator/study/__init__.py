"""Studies of one part, or comparisons of several: a kernel, a collective, a schedule, flows, or views of a training step."""
