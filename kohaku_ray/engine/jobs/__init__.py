"""The drivers: one module per job."""
