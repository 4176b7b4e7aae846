"""Atomic file writes: a reader finds the old file or the whole new one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kohaku_ray.errors import DataError


def publish(path: str, data: bytes, way_out: str = "free the disk or choose another output") -> None:
    """Write a file in one step.

    Args:
        path: Path of the file.
        data: Its whole content.
        way_out: What to do when writing fails, for the message.

    Raises:
        DataError: The file cannot be written.
    """
    publish_with(path, lambda temporary: Path(temporary).write_bytes(data), way_out)


def publish_with(path: str, write: Callable[[str], object], way_out: str) -> None:
    """Write a file in one step by a function that takes a temporary path; see ``publish``."""
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise DataError(f"{path}: cannot be written ({error.strerror or error}): {way_out}.") from error
        raise
