"""Published measurements read into the terms of this package."""
