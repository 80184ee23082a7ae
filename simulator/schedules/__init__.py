"""Pipeline schedules, one file each: pure generators of slots. `program.slot` lists what a schedule may define."""
