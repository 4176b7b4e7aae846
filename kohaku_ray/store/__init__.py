"""What lasts: segments of replies, leases, a run's directory and tables, and the storage that holds them."""
