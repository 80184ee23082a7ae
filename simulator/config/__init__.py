"""What a person writes, read into values: documents with places, scenarios, files of GPUs, fabrics and fits, code of users."""
