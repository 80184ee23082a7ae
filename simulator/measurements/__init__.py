"""What other people measured, in their words, read into the nouns of this package."""
