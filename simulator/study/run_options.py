"""What a run may be asked for beside its scenario. Light: the command line reads it to print its help."""

from __future__ import annotations

ENGINES = ("auto", "des", "replay", "compiled")
MOST_STEPS = 1000
"""Training steps in a row."""
