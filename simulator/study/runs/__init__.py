"""What a simulation gives back: its numbers, what they are made of, and how far to trust them."""
