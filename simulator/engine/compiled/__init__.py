"""Compiled engine: the event loop in machine code, equal to the reference engine event by event."""
