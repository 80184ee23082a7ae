"""Programs: what every pipeline rank does, free of hardware. The upper half of the waist; `engine.task` is the lower."""
