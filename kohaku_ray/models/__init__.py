"""Prompts, answer schema and its parser, seeds, and the model backends."""
