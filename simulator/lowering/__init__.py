"""Lowering: from model, plan, job and schedule to a program. `build` writes the unsplit program, `passes/` transform it."""
