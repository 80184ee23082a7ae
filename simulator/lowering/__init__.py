"""Lowering: a model, a plan, a job and a schedule become a program. `build` writes it unsplit, `passes/` transform it."""
