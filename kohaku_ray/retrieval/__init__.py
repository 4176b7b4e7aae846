"""Retrieval: from queries to ranked evidence and a context within its budget."""
