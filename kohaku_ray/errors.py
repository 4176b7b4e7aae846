"""The exceptions of this package, as one tree.

::

    KohakuRayError
    ├── ConfigError              a configuration, a flag or the cluster's size; exit code 2, as of a DataError
    │   └── ConflictError        values that are valid alone but not together
    ├── CodeRefusedError         code that a bundle's configuration names, which nobody has trusted
    ├── DataError                a file or its content
    │   ├── TreeError            nodes that do not form a tree
    │   ├── NoIndexError         an index that was never built, also a ConfigError: exit code 2
    │   ├── IndexMismatchError   an index built with another configuration
    │   ├── UnreachableError     a server or cluster that does not answer, also a ConfigError: exit code 1
    │   └── StorageError         a filesystem that refuses or does not answer, or what another process holds
    ├── MetricError              the code of a metric raised; other metrics are scored
    └── ModelError               a model backend
        ├── ContextOverflowError the prompt is longer than the model takes
        ├── RefusedAccessError   a key, a credit or a model's name is refused, and so every call: the run stops
        └── TransientModelError  may pass by itself: the only one that is retried
            └── UnfinishedReplyError a reply that says of itself that it failed; retried with another seed

A message says what, where, both values and the way out.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class KohakuRayError(Exception):
    """Base of every error this package raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """Show the message alone in a notebook, which asks for this by its name: it says what to do."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(KohakuRayError):
    """A configuration, a flag or the cluster's size does not fit."""


class ConflictError(ConfigError):
    """Values of a configuration are valid alone, but not together."""


class CodeRefusedError(KohakuRayError):
    """A configuration that is not trusted names code; no kind of ``ConfigError``, so nothing goes on without it."""


class DataError(KohakuRayError):
    """A file or its content cannot be used."""


class TreeError(DataError):
    """Nodes do not form a four-level tree."""


class NoIndexError(DataError, ConfigError):
    """Where the configuration says that an index is, there is none."""


class IndexMismatchError(DataError):
    """An index on disk was built with another configuration than the one asked for."""


class UnreachableError(DataError, ConfigError):
    """A server or a cluster does not answer where the configuration says that it is: a later try may succeed."""


class StorageError(DataError):
    """A filesystem refuses or does not answer, or another process holds what is asked for: a later try may succeed."""


class MetricError(KohakuRayError):
    """The code of a metric raised."""

    def __init__(self, message: str, metric: str) -> None:
        """Keep the name of the metric."""
        super().__init__(message)
        self.metric = metric

    def __reduce__(self) -> tuple[type[MetricError], tuple[str, str]]:
        """Pickle with both arguments: errors are sent between processes."""
        return type(self), (str(self), self.metric)


class ModelError(KohakuRayError):
    """A model backend refused or failed."""


class ContextOverflowError(ModelError):
    """The rendered prompt is longer than the model's window."""


class RefusedAccessError(ModelError):
    """A server refuses the key, its credit is used up, or it has no such model: no other call will be answered."""


class TransientModelError(ModelError):
    """A failure that may pass by itself, such as a time-out or a rate limit."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        """Keep the server's Retry-After, in seconds."""
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[TransientModelError], tuple[str, float | None]]:
        """Pickle with both arguments: errors are sent between processes."""
        return type(self), (str(self), self.retry_after_s)


class UnfinishedReplyError(TransientModelError):
    """A reply that failed, was stopped, or has no token: another seed may give a whole one."""


def is_mistake(error: Exception) -> bool:
    """Whether what a person gave, a setting or a file, cannot be used: exit code 2, and no try again helps."""
    return isinstance(error, (ConfigError, DataError)) and not isinstance(error, (StorageError, UnreachableError))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the closest known word, or the first that begins so; empty where none is close."""
    known, typed = list(known), word.replace("_", "")
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    close = close or [name for name in known if len(typed) > 2 and name.replace("_", "").startswith(typed)]
    return f" (did you mean {close[0]}?)" if close else ""


def describe_raised(error: Exception) -> str:
    """Say what the code of a user raised, and where: the file and the line, no traceback."""
    *_, raised = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {Path(raised.filename).name}, line {raised.lineno}: {error}"


def message_of(error: BaseException) -> str:
    """Return an error's message in one line: of one that Ray wraps, the cause's, without the remote stack."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    if isinstance(error, KohakuRayError):
        return " ".join(str(error).split())
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
