"""A run's life without Ray: its directory, tables and summary, a sweep's cells and results."""
