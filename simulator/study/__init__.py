"""Studies: one thing by itself, or many compared: a kernel, a collective, a schedule, flows, views of a training step."""
