"""The version of this package, a module alone so that every room may import it."""

__version__ = "0.1.0"
