"""Evaluation: scores, classes of errors, statistics."""
