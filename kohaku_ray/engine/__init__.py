"""The only room that imports ray: indexing, serving, members, ledger, answering, sweeping."""
