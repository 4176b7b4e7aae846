"""Typed, frozen configuration; loading and overriding."""

from kohaku_ray.config.load import as_yaml, build_config, keys_of, load_config
from kohaku_ray.config.schema import Config

__all__ = ["Config", "as_yaml", "build_config", "keys_of", "load_config"]
