"""Errors that come back from Ray, as what they were."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from kohaku_ray.errors import KohakuRayError, ModelError


def fetch(refs: Any) -> Any:
    """Get results; an error raised on purpose comes back as itself, without the remote stack in its text.

    Raises:
        KohakuRayError: What the task raised.
        ModelError: An actor is gone for good.
    """
    try:
        return ray.get(refs)
    except RayTaskError as error:
        cause = root_cause(error)
        if isinstance(cause, KohakuRayError):
            raise cause from None
        raise
    except RayActorError as error:
        raise ModelError(f"an actor of this job is gone for good: {message_of(error)}") from None


def root_cause(error: BaseException) -> BaseException:
    """Follow Ray's wrappers to the error that a task raised first."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def message_of(error: BaseException) -> str:
    """Take an error's message alone: Ray puts the remote stack into the text."""
    lines = str(root_cause(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
