"""Workloads: models as blocks of operators, and the job that trains them."""
