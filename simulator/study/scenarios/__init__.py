"""What a person asks for: files and values of models, clusters and plans, checked and made into a scenario."""
