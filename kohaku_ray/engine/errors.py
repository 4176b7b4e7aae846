"""Errors that come back from Ray, as what they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from kohaku_ray import errors
from kohaku_ray.errors import KohakuRayError, ModelError

_OURS_IN_TEXT = re.compile(r"^kohaku_ray\.errors\.(\w+): (.*)\Z", re.MULTILINE | re.DOTALL)


class ReplicaLostError(KohakuRayError):
    """A replica died under a call, which another may answer."""


def ray_get(refs: Any) -> Any:
    """Get results; an error raised on purpose comes back as itself, without the remote stack in its text.

    Raises:
        KohakuRayError: What the task raised, or the actor as it was made.
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
        born = _of_creation(error)
        if born is not None:
            raise born from None
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
        if isinstance(one, RayActorError) and (born := _of_creation(one)) is not None:
            return born
        waiting += [one.__cause__, one.__context__, getattr(one, "cause", None)]
    return None


def _of_creation(error: RayActorError) -> KohakuRayError | None:
    """Read back an error of ours that an actor raised as it was made: Ray keeps no more of it than its text."""
    told = _OURS_IN_TEXT.search(str(error))
    kind = getattr(errors, told[1], None) if told else None
    return kind(told[2].strip()) if told and isinstance(kind, type) and issubclass(kind, KohakuRayError) else None


def root_cause(error: BaseException) -> BaseException:
    """Follow Ray's wrappers to the error that a task raised first."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def message_of(error: BaseException) -> str:
    """Take an error's message alone: Ray puts the remote stack into the text."""
    lines = str(root_cause(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
