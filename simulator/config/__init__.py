"""Input of the simulator read into values: documents with places, scenarios, files of GPUs, fabrics and fits, and code of
users."""
