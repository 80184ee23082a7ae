"""GPUs as files describe them, the constants fitted to their kernels, and the time of one kernel."""
