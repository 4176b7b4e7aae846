"""Errors that come back from Ray, as what they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from kohaku_ray.errors import KohakuRayError, ModelError


class ReplicaLostError(KohakuRayError):
    """A replica died under a call, which another may answer."""


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
    except RayError as error:
        raise ModelError(f"a worker of this job was lost ({type(error).__name__}): {message_of(error)}") from None


@contextmanager
def unwrapped() -> Iterator[None]:
    """Run Ray Data, and raise an error of ours that a stage raised as itself."""
    try:
        yield
    except Exception as error:
        ours = _ours_among(error)
        if ours is None:
            raise
        raise ours from None


def _ours_among(error: BaseException | None) -> KohakuRayError | None:
    """Look for an error of ours in the causes, contexts and wrapped causes of another."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, KohakuRayError) and not isinstance(one, RayTaskError):
            return one
        waiting += [one.__cause__, one.__context__, getattr(one, "cause", None)]
    return None


def root_cause(error: BaseException) -> BaseException:
    """Follow Ray's wrappers to the error that a task raised first."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def message_of(error: BaseException) -> str:
    """Take an error's message alone: Ray puts the remote stack into the text."""
    lines = str(root_cause(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
