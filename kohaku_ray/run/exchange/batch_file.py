"""Read and check the requests of OpenAI's batch files, and write their replies and errors.

The format is that of https://platform.openai.com/docs/guides/batch, for ``/v1/chat/completions``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from kohaku_ray.config import Config
from kohaku_ray.errors import ConfigError, DataError, did_you_mean
from kohaku_ray.models.batch_api import URL
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply, UnstableError, canonical_json, digest, digest_text
from kohaku_ray.run.lease import LeaseFile
from kohaku_ray.settings import PositiveInt
from kohaku_ray.storage import Directory

MOST_LINE_MIB = 16
"""Longest line that is read."""
MOST_FAULTS = 5
"""Most faults of a line that are said."""
PART = ".part"
"""Suffix of an output that is being written; the next run writes it anew."""

_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "n": [1],
    "stream": [False],
    "logprobs": [False],
    "top_logprobs": [0],
    "frequency_penalty": [0],
    "presence_penalty": [0],
    "response_format": [{"type": "text"}],
    "tools": [[]],
    "functions": [[]],
    "tool_choice": ["auto", "none"],
    "function_call": ["auto", "none"],
    "parallel_tool_calls": [True, False],
    "stop": [[]],
    "logit_bias": [{}],
    "modalities": [["text"]],
}
"""Values that change nothing, of fields that a request cannot carry otherwise; null changes nothing in any field."""

_WITHOUT_EFFECT = frozenset(
    {"metadata", "user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Fields that change no reply, whatever they say: they are for the API's own books."""

_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unsupported_parameter"}


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a line has no reply: ``param`` is the field at fault, ``status`` None where there was no answer."""

    code: str
    message: str
    param: str | None = None
    status: int | None = 400


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of an input file, numbered from 1: a request, or the error that says why it is none."""

    number: int
    custom_id: str | None
    model: str = ""
    deployment: str = ""
    request: ChatRequest | None = None
    error: LineError | None = None
    n_bytes: int = 0


class BatchModels:
    """The models that lines may name: as roles do, or by the model's name if one deployment has it."""

    def __init__(self, config: Config) -> None:
        """Find the deployments of language models; raises a ``ConfigError`` if there are none."""
        kinds = ("openai", "vllm", "transformers")
        self.deployments: dict[str, Any] = {
            key: deployment for key, deployment in config.deployments.items() if deployment.kind in kinds
        }
        if not self.deployments:
            raise ConfigError(
                "deployments has no language model: give one, such as --with models/ollama, or a file of your own"
            )
        self._models: dict[str, Any] = {name: model for name, model in config.models.items() if model.kind in kinds}
        self._deployment_of = config.deployment_of
        n_named = Counter(deployment.model for deployment in self.deployments.values())
        self._keys = {
            deployment.model: key for key, deployment in self.deployments.items() if n_named[deployment.model] == 1
        }
        self._keys |= {name: name for name in self._models}
        self._identities: dict[str, str] = {}
        self._max_tokens = config.role(config.declaration.lead).max_tokens
        self._seed = config.seed

    def name_of(self, model: str) -> str:
        """Return what the configuration calls a model; raises a ``LookupError`` that says which there are."""
        if model not in self._keys:
            names = ", ".join(self._keys)
            raise LookupError(f"model is {model[:200]!r} but deployed are {names}{did_you_mean(model, self._keys)}")
        return self._keys[model]

    def deployment_of(self, name: str) -> str:
        """Return the key of the deployment that answers for a name that ``name_of`` gave."""
        return self._deployment_of(name)

    def request(self, name: str, body: _Body) -> ChatRequest:
        """Make the call of a line; what it does not say is the API's default, or the configuration's.

        Raises:
            ValueError: The call cannot carry a value; the text begins with its field.
        """
        deployment, schema, given = self._models[name], None, body.max_completion_tokens or body.max_tokens
        if None not in (body.max_completion_tokens, body.max_tokens) and body.max_tokens != given:
            raise ValueError(f"max_tokens is {body.max_tokens} but max_completion_tokens is {given}: give one of them")
        if body.response_format is not None:
            schema = body.response_format.json_schema.schema_
            mode = getattr(deployment, "schema_mode", "json_schema")
            if mode != "json_schema":
                raise ValueError(f"response_format: deployments.{name}.schema_mode is {mode}, so that it would be lost")
            canonical_json(schema, "response_format.json_schema.schema")
        if name not in self._identities:
            self._identities[name] = deployment.model_identity
        messages = tuple((message.role, message.content) for message in body.messages)
        return ChatRequest(
            model=self._identities[name],
            messages=messages,
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=given or self._max_tokens + deployment.reasoning_tokens,
            seed=self._seed if body.seed is None else body.seed,
            schema=schema,
            session_id=digest_text("\0".join(content for _, content in messages)),  # one prompt goes to one replica
            adapter=deployment.adapter,
        )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _given(value: Any) -> Any:
    """Leave out the fields that say nothing."""
    if not isinstance(value, dict):
        return value
    stated = ((key, field_value) for key, field_value in value.items() if field_value is not None)
    return {
        key: field_value
        for key, field_value in stated
        if key not in _WITHOUT_EFFECT and field_value not in _NEUTRAL.get(key, ())
    }


def _text(content: Any) -> Any:
    """Return the text of a message, which may be a list of one part."""
    match content:
        case [{"type": "text", "text": text, **rest}] if not rest:
            return text
        case list():
            raise ValueError("a list must hold one part of type text: several parts, images and files are not sent")
    return content


def _object_schema(schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") != "object":
        raise ValueError("the root of a schema must be of type object")
    return schema


class _Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text)]


class _JsonSchema(_Strict):
    name: str = ""
    schema_: Annotated[dict[str, Any], BeforeValidator(_object_schema)] = Field(alias="schema")
    strict: Literal[True] = True


class _Format(_Strict):
    type: Literal["json_schema"]
    json_schema: Annotated[_JsonSchema, BeforeValidator(_given)]


class _Body(_Strict):
    model: str
    messages: Annotated[list[Annotated[_Message, BeforeValidator(_given)]], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None  # what every backend accepts
    response_format: _Format | None = None


class _Line(_Strict):
    custom_id: Annotated[str, Field(min_length=1)]
    method: Literal["POST"]
    url: str
    body: Annotated[_Body, BeforeValidator(_given)]


def read_lines(path: str, models: BatchModels) -> Iterator[BatchLine]:
    """Read a batch file, one line at a time; blank lines are passed over.

    Memory: one line of at most ``MOST_LINE_MIB``, and 16 bytes per line for its id.

    Raises:
        DataError: The file cannot be read.
    """
    seen: set[bytes] = set()
    for number, raw in _raw_lines(path):
        yield _read(number, raw, models, seen)


def _raw_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line; of a line that is too long, one byte more than is allowed."""
    most = MOST_LINE_MIB * 2**20
    try:
        with open(path, "rb") as file:
            for number in count(1):
                raw = rest = file.readline(most + 1)
                if not raw:
                    return
                while len(raw) > most and rest and not rest.endswith(b"\n"):
                    rest = file.readline(2**20)
                raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if raw.strip():
                    yield number, raw
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): name a local file of JSON lines") from error


def _read(number: int, raw: bytes, models: BatchModels, seen: set[bytes]) -> BatchLine:
    custom_id: str | None = None

    def bad(code: str, message: str, param: str | None = None) -> BatchLine:
        return BatchLine(number, custom_id, error=LineError(code, f"line {number}: {message}", param), n_bytes=len(raw))

    if len(raw) > MOST_LINE_MIB * 2**20:
        return bad("line_too_long", f"it has more than {MOST_LINE_MIB} MiB: shorten its messages")
    try:
        values = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        return bad("invalid_json_line", f"it is not JSON: {error}")
    if not isinstance(values, dict):
        return bad("invalid_json_line", f"it is a {type(values).__name__}, not an object")
    given = values.get("custom_id")
    if isinstance(given, str) and given:
        custom_id, name = given, digest_text(given, 16)
        if (known := bytes.fromhex(name)) in seen:
            return bad("duplicate_custom_id", f"custom_id {given[:200]!r} is that of an earlier line", "custom_id")
        seen.add(known)
    if isinstance(values.get("url"), str) and values["url"] != URL:
        return bad("url_mismatch", f"url is {values['url'][:200]!r}: only {URL} is served", "url")
    try:
        line = _Line.model_validate(values)
        model = models.name_of(line.body.model)
        key, request = models.deployment_of(model), models.request(model, line.body)
        return BatchLine(number, custom_id, line.body.model, key, request, n_bytes=len(raw))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)[:MOST_FAULTS]
        keys_at_fault = [".".join(map(str, fault["loc"])) for fault in faults]
        message = "; ".join(f"{loc}: {fault['msg']}" for loc, fault in zip(keys_at_fault, faults, strict=True))
        return bad(_CODES.get(faults[0]["type"], "invalid_value"), message, keys_at_fault[0])
    except LookupError as error:
        return bad("model_not_found", str(error.args[0]), "body.model")
    except (ValueError, UnstableError) as error:
        return bad("unsupported_parameter", f"body.{error}", f"body.{str(error).split()[0].rstrip(':')}")


def answer_line(line: BatchLine, key: str, reply: Reply) -> bytes:
    """Write the line of a reply; its ids and ``created`` are such that another run writes the same bytes."""
    message = {"role": "assistant", "content": reply.text, "refusal": None}
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
    usage["total_tokens"] = sum(usage.values())
    body = {
        "id": f"chatcmpl-{key}",
        "object": "chat.completion",
        "created": 0,
        "model": line.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}],
        "usage": usage,
    }
    return _written(line, {"status_code": 200, "request_id": f"req_{key}", "body": body}, None)


def error_line(line: BatchLine, error: LineError) -> bytes:
    """Write the line of an error: as the API's answer where there is a status, else as a call without an answer."""
    if error.status is None:
        return _written(line, None, {"code": error.code, "message": error.message})
    told = {"message": error.message, "type": "invalid_request_error", "param": error.param, "code": error.code}
    response = {"status_code": error.status, "request_id": f"req_{_id(line)}", "body": {"error": told}}
    return _written(line, response, None)


def _written(line: BatchLine, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> bytes:
    told = {"id": f"batch_req_{_id(line)}", "custom_id": line.custom_id, "response": response, "error": error}
    return json.dumps(told).encode() + b"\n"


def _id(line: BatchLine) -> str:
    return digest([line.number, line.custom_id], 12)


def errors_path(output: str) -> str:
    """Return the path of an output's error file: ``out.errors.jsonl`` beside ``out.jsonl``."""
    stem, suffix = os.path.splitext(output)
    return f"{stem}.errors{suffix or '.jsonl'}"


class BatchOutput:
    """The two output files while they are written."""

    def __init__(self, answers: BinaryIO, errors: BinaryIO) -> None:
        self._answers, self._errors = answers, errors

    def write(self, line: BatchLine, outcome: tuple[str, Reply] | LineError) -> None:
        """Write what became of a line: its key in the ledger and the reply, or an error."""
        file = self._errors if isinstance(outcome, LineError) else self._answers
        with _naming_the_file(file.name):
            file.write(error_line(line, outcome) if isinstance(outcome, LineError) else answer_line(line, *outcome))


@contextmanager
def writing(output: str) -> Iterator[BatchOutput]:
    """Write an output file and its error file anew; both get their names when the block has ended without an error.

    Without errors there is no error file, and an old one is deleted.

    Raises:
        DataError: They cannot be written, or another job writes them.
    """
    directory, name = os.path.split(os.path.abspath(output))
    lease = LeaseFile(Directory(directory), "output", "wait for it to end, or name another output", name)
    paths = (output, errors_path(output))
    parts = [f"{path}{PART}" for path in paths]
    with ExitStack() as files:
        with _naming_the_file(output):
            os.makedirs(directory, exist_ok=True)
            files.enter_context(lease.held())
            opened = [files.enter_context(open(part, "wb")) for part in parts]
        try:
            yield BatchOutput(*opened)
            with _naming_the_file(output):
                for file in opened:
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(parts[1], paths[1])
                if not opened[1].tell():
                    os.remove(paths[1])
                os.replace(parts[0], paths[0])
        except BaseException:
            for part in parts:
                with suppress(OSError):
                    os.remove(part)
            raise


@contextmanager
def _naming_the_file(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be written ({reason}): free the disk or choose another output") from error
