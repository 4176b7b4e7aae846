"""Turn Ray's errors back into the errors that were raised in its workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from kohaku_ray import errors
from kohaku_ray.errors import KohakuRayError, ModelError, message_of

_OURS_IN_TEXT = re.compile(r"^kohaku_ray\.errors\.(\w+): (.*)\Z", re.MULTILINE | re.DOTALL)

_NOTE_OF_RAY_DATA = re.compile(r"\nFailed to [^\n]* after \d+/\d+ attempts \(total backoff .*\Z", re.DOTALL)


def ray_get(refs: Any) -> Any:
    """Get results; an error raised on purpose comes back as itself, without the remote stack in its text.

    Raises:
        KohakuRayError: What the task or the actor's constructor raised.
        ModelError: An actor died and is not restarted, or a worker was lost.
    """
    try:
        return ray.get(refs)
    except RayTaskError as error:
        cause = root_cause(error)
        if isinstance(cause, KohakuRayError):
            raise cause from None
        raise
    except RayActorError as error:
        if raised := _of_creation(error):
            raise raised from None
        raise ModelError(f"an actor of this job died and is not restarted: {message_of(error)}") from None
    except RayError as error:
        raise ModelError(f"a worker of this job was lost ({type(error).__name__}): {message_of(error)}") from None


@contextmanager
def unwrapped() -> Iterator[None]:
    """Run Ray Data; a KohakuRayError that a stage raised comes back as itself."""
    try:
        yield
    except Exception as error:
        ours = _ours_among(error)
        if ours is None:
            raise
        if ours.args and isinstance(ours.args[0], str):
            ours.args = (_NOTE_OF_RAY_DATA.sub("", ours.args[0]), *ours.args[1:])
        raise ours from None


def _ours_among(error: BaseException | None) -> KohakuRayError | None:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, KohakuRayError) and not isinstance(error, RayTaskError):
            return error
        if isinstance(error, RayActorError) and (raised := _of_creation(error)) is not None:
            return raised
        waiting += [error.__cause__, error.__context__, getattr(error, "cause", None)]
    return None


def _of_creation(error: RayActorError) -> KohakuRayError | None:
    """Rebuild the KohakuRayError that an actor's constructor raised, from its text: Ray keeps nothing else."""
    told = _OURS_IN_TEXT.search(str(error))
    kind = getattr(errors, told[1], None) if told else None
    return kind(told[2].strip()) if told and isinstance(kind, type) and issubclass(kind, KohakuRayError) else None


def root_cause(error: BaseException) -> BaseException:
    """Follow Ray's wrappers to the error that a task raised first."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error
