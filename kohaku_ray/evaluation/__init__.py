"""Evaluation: scores, classes of errors, statistics."""

DEFAULT_METRIC = "wattbot"
"""Here, where the command line reads it without loading numpy."""
