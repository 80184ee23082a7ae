"""Pipeline schedules, one file each: pure generators of slots. What a schedule may define is said in `program.slot`."""
