"""Workloads: models as blocks of operators, the framework that runs the models, and the training job."""
