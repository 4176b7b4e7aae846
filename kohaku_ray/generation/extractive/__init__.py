"""A backend without weights: it picks the sentence that covers the question best and lifts the value out of it.

It reads a request's variables, not its prose. It is the offline default and a floor to compare models with.
"""

from kohaku_ray.generation.extractive.backend import ExtractiveBackend

__all__ = ["ExtractiveBackend"]
