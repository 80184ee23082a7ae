"""The commands of `trainsim`, one file each: the file has the name of the command, and its `command` is what click runs."""
