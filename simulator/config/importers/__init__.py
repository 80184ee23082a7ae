"""Importers of files that other programs write: one module per format, found by its file name.

An importer has `recognises(data)`, which is true if the other program wrote the contents of a file, and `imported(data, kind,
file)`, which returns these contents in the keys of a file of that kind of the catalog, such as `models`. `imported` raises
`UserError` for contents that cannot be translated.
"""
