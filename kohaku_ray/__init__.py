"""kohaku_ray: citation-precise, ensemble question answering in batch, on Ray."""

__version__ = "0.1.0"
