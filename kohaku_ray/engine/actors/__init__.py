"""The actors of an answer job, and the pool that holds them."""
