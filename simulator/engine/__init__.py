"""The engine: integers in, integers out. It knows tasks, streams, links and speeds, and nothing of what they stand for."""
