"""The engine: integers in, integers out. It knows tasks, streams, links and paces, and nothing of what they stand for."""
