"""The ledger: every model call is made once, and its reply is kept."""
