"""Normalise, vote, decide."""
