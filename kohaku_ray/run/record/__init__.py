"""One run on disk: its directory, identity, tables, outputs, costs."""
