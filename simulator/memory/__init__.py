"""Memory: bytes that every rank holds, static and over the training step."""
