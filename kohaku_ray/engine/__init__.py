"""The only package that imports ray: jobs, actors, ledger and model serving."""
