"""Programs: the operations of every pipeline rank, free of hardware. Lowering writes programs, binding turns them into tasks."""
