"""A backend without weights: it picks the sentence that covers the question best and extracts the value from it.

It reads a request's variables, not its text. It is the offline default and a baseline to compare models with.
"""

from kohaku_ray.models.extractive.backend import ExtractiveBackend

__all__ = ["ExtractiveBackend"]
