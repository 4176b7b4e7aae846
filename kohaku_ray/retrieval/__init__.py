"""Queries in, ranked evidence and a context within its budget out."""
