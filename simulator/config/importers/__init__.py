"""Files that other programs write, where a file of ours is wanted: one module per format, found by its name.

An importer has `recognises(data)`, whether that program wrote the contents of a file, and `imported(data, kind, file)`: the same
in the keys of a file of that kind of the catalog, such as `models`. It raises `UserError` for what it cannot translate.
"""
