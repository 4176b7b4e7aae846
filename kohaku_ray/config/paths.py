"""The type of paths in a configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

MAX_PATH_BYTES, MAX_NAME_BYTES = 4095, 255


def _short_enough(path: str) -> str:
    """Refuse a path that no file system takes."""
    names = () if "://" in path else path.split("/")
    n_path, n_name = len(path.encode()), max((len(name.encode()) for name in names), default=0)
    if n_path > MAX_PATH_BYTES or n_name > MAX_NAME_BYTES:
        raise PydanticCustomError(
            "path_too_long",
            "a path has at most {path} bytes and each of its names {name}, this one {n_path} and {n_name}: shorten it",
            {"path": MAX_PATH_BYTES, "name": MAX_NAME_BYTES, "n_path": n_path, "n_name": n_name},
        )
    return path


FilePath = Annotated[str, AfterValidator(_short_enough)]
"""A path, a URI, or the name of a model."""
