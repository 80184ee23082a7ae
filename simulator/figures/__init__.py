"""Figures: what a run looks like, drawn from its timeline."""
