"""Studies: what a person does with the simulator. Scenarios and the catalog come in here; `simulate` is the verb."""
