"""The commands of `trainsim`, one file each: the file's name is the command's name, its `command` what click runs."""
