"""Mutations of the package, kept as patches, and the tests that must fail with each of them."""
