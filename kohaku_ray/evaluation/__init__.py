"""Scores, error taxonomy, statistics."""
