"""Input of the simulator read into values: documents, scenarios, files of GPUs, fabrics and fits, and user code."""
