"""The event loop in machine code, equal to the reference event by event."""
