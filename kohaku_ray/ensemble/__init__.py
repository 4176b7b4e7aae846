"""Ensembles: normalise values, count votes, decide when a vote is settled."""
