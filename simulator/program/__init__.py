"""Programs: what every pipeline rank does, free of hardware. Lowering writes them, and binding makes tasks of them."""
