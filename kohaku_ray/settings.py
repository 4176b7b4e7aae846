"""What rooms declare their settings with: the base of every section, paths in a file, the secrets in values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from kohaku_ray.errors import ConfigError
from kohaku_ray.store.storage import is_uri

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Base of every section of a configuration: frozen, no unknown keys; a docstring under each key."""

    # Without ``use_attribute_docstrings``, which reads the source of every section in every process: 0.1 s. The
    # docstrings are for readers of the code, and for `validate --settings`.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def read_meanings(section: type[Settings]) -> dict[str, str]:
    """Read the docstring under each key of a section, also of those that it inherits; none where there is no source."""
    import ast  # here: every process has settings, and few read their source
    import inspect
    import textwrap

    meanings: dict[str, str] = {}
    for declared in reversed(section.__mro__):
        if not issubclass(declared, Settings):
            continue
        try:
            [body] = ast.parse(textwrap.dedent(inspect.getsource(declared))).body
        except OSError:
            continue
        for key, below in pairwise(body.body):  # type: ignore[attr-defined]
            if isinstance(key, ast.AnnAssign) and isinstance(below, ast.Expr):
                meanings[ast.unparse(key.target)] = " ".join(ast.literal_eval(below.value).split())
    return meanings


SAMPLE = "sample:"
"""Prefix of a path inside the package's own collection."""

PACKAGE = "package:"
"""Prefix of a model, or a model's file, inside a Python package."""


class RelativeToFile(str):
    """A text of a configuration file that remembers the file's directory, to which paths in it are relative."""

    directory: str

    def __new__(cls, text: str, directory: str = "") -> RelativeToFile:  # noqa: D102
        value = super().__new__(cls, text)
        value.directory = directory
        return value

    def with_text(self, text: str) -> RelativeToFile:
        """Return another text of the same file."""
        return RelativeToFile(text, self.directory)


def join_to_file(text: Any) -> Any:
    """Join a path to its file's directory; URIs, ``~``, ``sample:`` and any other value stay as they are."""
    if not isinstance(text, RelativeToFile) or not text or not text.directory:
        return text
    if os.path.isabs(text) or text.startswith(("~", SAMPLE, PACKAGE)) or is_uri(text):
        return str(text)
    return os.path.normpath(os.path.join(text.directory, text))


def _join_model(text: Any) -> Any:
    # A model is a path only if it begins with a dot or is a GGUF file; otherwise it is a name.
    is_path = isinstance(text, str) and (text.startswith(("./", "../")) or _is_gguf(text))
    return join_to_file(text) if is_path else text


FilePath = Annotated[str, "a path", BeforeValidator(join_to_file)]
"""A path or a URI."""

ModelPath = Annotated[str, "a model", BeforeValidator(_join_model)]
"""The name of a model, or its path."""


_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"(?=.*[a-z])(?=.*[0-9]).{20}")
"""Begins a key that could be a name, such as gsk_…: long, with small letters and digits."""


class ServerSettings(Settings):
    """How a model server is asked over HTTP."""

    MOST_MIB: ClassVar[float] = 4.0
    """Largest body of a response, decompressed, in MiB: 128,000 tokens have a quarter of that."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the API key; None: no key is sent."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers sent with every request, such as {api-key: "${AZURE_KEY}"} (with `api_key_env: null`)."""
    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    """Rate limit over all replicas; None: no limit."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Limit over all replicas of prompt tokens, about four characters each, plus max_tokens; None: no limit."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Longest wait for one reply."""
    max_tries: PositiveInt = 6
    """Tries per request before its row carries the error."""
    backoff_s: Annotated[float, Field(gt=0)] = 0.5
    """First pause between tries; it doubles, with jitter, up to a minute; Retry-After sets a longer one."""
    identity: str | None = None
    """Appended to the model's name in the ledger's keys, for servers that give different weights the same name."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields merged into every request."""

    @field_validator("api_key_env")
    @classmethod
    def _names_a_variable(cls, name: str | None) -> str | None:
        if name is not None and name not in os.environ and (not _VARIABLE_NAME.fullmatch(name) or _KEY.match(name)):
            raise ValueError(
                "api_key_env holds no variable's name, perhaps the key itself: export the key as a variable, such as "
                "MY_API_KEY, and name that"
            )
        return name

    @property
    def is_limited(self) -> bool:
        """Whether requests wait for their turn."""
        return self.requests_per_s is not None or self.tokens_per_minute is not None

    @property
    def extra_identity(self) -> str:
        """``extra_body`` as JSON, its keys hidden; ``ConfigError`` if it is no JSON."""
        try:
            extra = json.dumps(self.extra_body, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"extra_body is no JSON ({error}): use text, numbers, lists, objects") from error
        for secret in find_secrets(self.extra_body):
            extra = extra.replace(json.dumps(secret), '"[key]"')
        return extra


S = TypeVar("S", bound=Settings)


def resolve_paths(section: S) -> S:
    """Make every relative path of a section and those below it absolute: actors may run in another directory."""
    update: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value, absolute = getattr(section, name), _absolute_form(field.annotation, field.metadata)
        if isinstance(value, Settings):
            update[name] = resolve_paths(value)
        elif isinstance(value, dict):
            update[name] = {
                key: resolve_paths(entry) if isinstance(entry, Settings) else absolute(entry) if absolute else entry
                for key, entry in value.items()
            }
        elif absolute:
            update[name] = tuple(map(absolute, value)) if isinstance(value, tuple) else value and absolute(value)
    return section.model_copy(update={name: new for name, new in update.items() if new != getattr(section, name)})


def is_model_path(model: str) -> bool:
    """Return whether a model's name is a path, existing or not; otherwise it is a name on a hub or in a package."""
    return model.startswith((".", "/", "~")) or os.path.isdir(model) or _is_gguf(model)


def _is_gguf(model: str) -> bool:
    return model.endswith(".gguf") and not model.startswith(PACKAGE)


def _absolute_form(annotation: Any, metadata: Any) -> Callable[[str], str] | None:
    """Return what makes a field's paths absolute; None: it holds none."""
    if "a path" in metadata:
        return lambda path: path if is_uri(path) or path.startswith(SAMPLE) else _absolute(path)
    if "a model" in metadata:
        return lambda name: _absolute(name) if is_model_path(name) else name
    inner = [part for part in get_args(annotation) if not isinstance(part, str)]
    return next(filter(None, (_absolute_form(part, getattr(part, "__metadata__", ())) for part in inner)), None)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def check_working_directory() -> None:
    """Raise a ConfigError if the working directory has been removed: relative paths and Ray need one."""
    try:
        os.getcwd()
    except FileNotFoundError:
        if _IN_RAY_JOB in os.environ:
            raise ConfigError(
                "the job's copy of the working directory was removed, by a second node on this machine that has the "
                "same --temp-dir, or once no process used it: submit the job again, which goes on from what is recorded"
            ) from None
        raise ConfigError(
            "the working directory was removed: change to one that is there (cd), then start again"
        ) from None


_IN_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable of a command that `ray job submit` started."""

_RAY_COPY = "/runtime_resources/working_dir_files/"


def check_kept(paths: Mapping[str, str]) -> None:
    """Refuse paths, by key or flag, inside the copy of a working directory that Ray makes for a job, and deletes."""
    if lost := [f"{key} is {path}" for key, path in paths.items() if _RAY_COPY in path]:
        raise ConfigError(
            f"{', '.join(lost)}: inside the copy of the working directory that Ray deletes after the job. Give a "
            "directory that all nodes share: --set shared=/path puts relative ones of run, index.path, ledger.path "
            "and tracking.store, and of a sweep's output, runs and indexes, into it"
        )


def shown_path(path: str) -> str:
    """Write a path as it was given where it lies in the working directory, or in the copy that Ray made of it."""
    if _RAY_COPY in path:
        return path.partition(_RAY_COPY)[2].partition("/")[2]
    with suppress(FileNotFoundError):  # the working directory itself may be gone by now
        if os.path.isabs(path) and not (below := os.path.relpath(path)).startswith(".."):
            return below
    return path


_SECRET_NAME = re.compile(
    r"(?:key|token|secret|password|passwd|authorization|auth|credentials?|sig|signature|cookie)$", re.IGNORECASE
)
_QUERY_SECRET = re.compile(
    r"code|pass|pwd|pat|jwt|sas|ticket|sid|session(?:_?id)?", re.IGNORECASE
)  # in addresses alone
_SCHEME = re.compile(r"(?:bearer|basic)\s+(?=\S)", re.IGNORECASE)
SECRET_CHARS = 8
"""Shortest key that is a secret; a shorter one, such as EMPTY or ollama, is a word that texts may hold."""


def find_secrets(values: object, name: str = "") -> set[str]:
    """Find the keys and passwords in plain values: under a ``name`` or after a scheme that says so, at any depth."""
    if isinstance(values, Mapping):
        parts = [find_secrets(value, name if _SECRET_NAME.search(name) else str(key)) for key, value in values.items()]
    elif isinstance(values, (list, tuple)):
        parts = [find_secrets(value, name) for value in values]
    else:
        is_secret = (
            isinstance(values, str)
            and len(values) >= SECRET_CHARS
            and (_SECRET_NAME.search(name) or _SCHEME.match(values))
        )
        parts = [{str(values)}] if is_secret else []
    return set().union(*parts)


def find_address_secrets(address: str) -> set[str]:
    """Find the password and the keys of the query in an address; none in what is no address."""
    try:
        parts = urlsplit(address)
        query = parse_qsl(parts.query)
    except ValueError:
        return set()
    named = [{"key" if _QUERY_SECRET.fullmatch(name) else name: value} for name, value in query]
    return find_secrets([{"password": [parts.password, unquote(parts.password or "")]}, named])
