"""Mutated files for every reader: `python -m tests.fuzz.worker READER FIRST COUNT` repeats a part of them."""
