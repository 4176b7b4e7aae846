"""Servers with OpenAI's chat completions API: the settings of a deployment, and its client with tries and limits."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import logging
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote_to_bytes
from urllib.request import getproxies, proxy_bypass

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from kohaku_ray.errors import (
    ConfigError,
    ContextOverflowError,
    ModelError,
    RefusedAccessError,
    TransientModelError,
    UnfinishedReplyError,
    did_you_mean,
)
from kohaku_ray.models.backend import ModelConfig, PriceConfig
from kohaku_ray.models.completion import (
    SchemaMode,
    as_object,
    completion_body,
    error_status,
    load_values,
    read_completion,
)
from kohaku_ray.models.dialect import Dialect
from kohaku_ray.models.json_text import find_values, loads
from kohaku_ray.models.redaction import Redaction
from kohaku_ray.models.refusal import refuses_access, refuses_length, room_left, told_wait_s
from kohaku_ray.models.request import CHARS_PER_TOKEN, ChatRequest, with_other_seed
from kohaku_ray.models.schema import least_tokens
from kohaku_ray.outcomes import plain
from kohaku_ray.records import Reply, digest_text
from kohaku_ray.settings import (
    SECRET_CHARS,
    ModelPath,
    PositiveInt,
    ServerSettings,
    Settings,
    find_address_secrets,
    find_secrets,
)
from kohaku_ray.values.read import clean_text

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


MOST_LINES, MOST_BYTES = 50_000, 200_000_000
"""Most calls and bytes of a batch's file, as OpenAI and Groq take them; as many calls are in flight."""


class BatchConfig(Settings):
    """How calls are gathered to files for a server's batch API."""

    gather_s: Annotated[float, Field(gt=0)] = 20.0
    """A file is sent when no call has come for so many seconds, or when it is full."""
    window: str = "24h"
    """`completion_window`: what the server promises; OpenAI knows 24h, Groq up to 7d."""
    poll_s: Annotated[float, Field(gt=0)] = 60.0
    """Longest pause between two looks at a batch; while it is young, a tenth of its age."""
    deadline_s: Annotated[float, Field(gt=0)] = 90_000.0
    """Age at which a batch is cancelled: what is done counts, the rest fails; 25 hours are the window and an hour."""
    single_after_deadline: bool = False
    """Whether the rest is asked by single calls instead, at their price."""


def _batch_settings(value: Any) -> Any:
    """Take ``true`` for batches as they are by default, and ``false`` for none."""
    return ({} if value else None) if isinstance(value, bool) else value


class OpenAIConfig(ServerSettings, ModelConfig):
    """Any OpenAI-compatible server."""

    kind: Literal["openai"] = "openai"
    base_url: str
    """URL up to and including the version, such as http://127.0.0.1:8000/v1; a query (?api-version=…) stays at the end
    of every request's address."""
    model: str
    """Model name the server knows."""
    max_ongoing: PositiveInt = 64
    """Requests in flight per replica."""
    window_tokens: PositiveInt | Literal["auto"] = 131072
    """Longest prompt plus answer, in tokens; `auto`: what the server says in its list of models at each start, as
    vLLM's does."""
    schema_mode: SchemaMode = "json_schema"
    """How the schema of the reply is sent."""
    tokenizer: ModelPath | None = None
    """Tokenizer name or path for counting prompts; None: the index's own counts."""
    revision: str | None = None
    """Revision of the tokenizer on the hub; None: the default branch."""
    batch: Annotated[BatchConfig | None, BeforeValidator(_batch_settings)] = None
    """`true`, or settings: calls are gathered to files and sent by the server's batch API; None: one by one."""

    @property
    def most_in_flight(self) -> int:
        """Calls that may be in flight; of batches, a file's."""
        return super().most_in_flight if self.batch is None else MOST_LINES

    @property
    def paid_price(self) -> PriceConfig:
        """What a call is paid; by a batch, half of it."""
        return self.price if self.batch is None else self.price.by_batch

    @property
    def window(self) -> int:
        """Longest prompt plus reply, in tokens; `auto` asks the server, once in a process."""
        return ask_window(self) if self.window_tokens == "auto" else self.window_tokens

    @model_serializer(mode="wrap")
    def _write_window(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write what a server has said, so that a replay of the run need not ask it.

        A serializer of the field alone would write its default also where defaults are left out.
        """
        written: dict[str, Any] = write(self)
        if written.get("window_tokens") == "auto":
            written["window_tokens"] = SERVER_WINDOWS.get((self.base_url, self.model), "auto")
        return written

    @property
    def model_identity(self) -> str:
        """The model's name and what else changes its replies: not the server, it may move."""
        name = f"openai:{self.model} schema_mode={self.schema_mode} extra_body={self.extra_identity}"
        return f"{name} identity={self.identity}" if self.identity else name

    @property
    def address_digest(self) -> str:
        """Digest of the address, which may be a secret of the environment."""
        return digest_text(self.base_url.rstrip("/"))

    def check(self, here: bool) -> None:
        """Check the address, the headers and the key; see ``BackendConfig.check``."""
        if self.batch is not None and (self.application is not None or self.replicas > 1):
            given = f"application {self.application}" if self.application is not None else f"replicas {self.replicas}"
            raise ConfigError(
                f"batch is set and {given}: one process gathers all calls to files; leave one of them out"
            )
        if self.batch is not None and find_spec("openai") is None:
            raise ConfigError("batch is set but the package openai is missing: pip install 'kohaku-ray[batches]'")
        self.make_backend(with_key=self.application is None)

    def make_backend(self, limiter: Limiter | None = None, *, with_key: bool = True) -> OpenAIBackend:
        """Build the client; see ``BackendConfig.make_backend``."""
        key = os.environ.get(self.api_key_env) if with_key and self.api_key_env is not None else None
        if with_key and self.api_key_env is not None and not key:
            raise ConfigError(
                f"api_key_env is {self.api_key_env} and the environment has no such variable: "
                f"`export {self.api_key_env}=…`, or set api_key_env to null for a server without keys"
            )
        return OpenAIBackend(self, key, limiter)


SERVER_WINDOWS: dict[tuple[str, str], int] = {}
"""What servers have said of their models' windows, by URL and model."""


def ask_window(settings: OpenAIConfig) -> int:
    """Ask a server how many tokens its model takes, prompt and reply together.

    Raises:
        ConfigError: It does not answer, or does not say it.
    """
    key = settings.base_url, settings.model
    if key in SERVER_WINDOWS:
        return SERVER_WINDOWS[key]

    async def ask() -> dict[str, int | None]:
        backend = settings.make_backend()
        try:
            return await backend.models(timeout_s=_ASK_S)
        finally:
            await backend.close()

    way_out = "start it, or set window_tokens to a number"
    try:
        with ThreadPoolExecutor(1) as thread:  # this one may have a running loop
            windows = thread.submit(asyncio.run, ask()).result()
    except ModelError as error:
        raise ConfigError(f"window_tokens is auto and the server does not say it ({error}): {way_out}") from None
    if (window := windows.get(settings.model)) is None:
        named = ", ".join(list(windows)[:5]) or "no model"
        raise ConfigError(
            f"window_tokens is auto, and the server's list ({named}) has no max_model_len of {settings.model}: set "
            "window_tokens to a number"
        )
    return SERVER_WINDOWS.setdefault(key, window)


_ASK_S = 10.0
"""Seconds for a server's list of its models, which needs no model."""


class Limiter(Protocol):
    """What clients of one server share: when the next request may be sent, and how requests are written.

    It may run in another process: pauses are durations, not instants.
    """

    async def acquire(self, n_tokens: int = 0) -> None:
        """Wait for the turn of a request of so many tokens."""
        ...

    async def penalise(self, pause_s: float) -> None:
        """Send no request for ``pause_s`` seconds from now: the server sent Retry-After."""
        ...

    async def learn(self, dialect: Dialect) -> Dialect:
        """Add to what all clients of the server know of its dialect; returns that."""
        ...


TURNS_S = 0.2
"""Turns that a client gets at once lie within so many seconds: a penalty reaches what it has not sent after them."""


class TokenBucket:
    """Sends ``requests_per_s`` and ``tokens_per_minute`` at even rates, in order of arrival.

    None is no limit: penalties alone are.
    """

    def __init__(self, requests_per_s: float | None, tokens_per_minute: float | None = None) -> None:
        self._interval_s = 0.0 if requests_per_s is None else 1.0 / requests_per_s
        self._token_s = 0.0 if tokens_per_minute is None else 60.0 / tokens_per_minute
        self._dialect = Dialect()
        self._due_s = time.monotonic()  # when the next request may be sent
        self._line = asyncio.Lock()  # first come, first served; a cancelled wait does not use up a turn

    async def acquire(self, n_tokens: int = 0) -> None:
        """Wait for the turn of a request of so many tokens, and for any penalty given meanwhile."""
        await self.reserve([n_tokens])

    async def reserve(self, n_tokens: Sequence[int]) -> list[float]:
        """Wait for the turn of the first of a client's requests, each of so many tokens.

        Returns:
            Seconds from then to its turn and to those of the next ones that come within ``TURNS_S``.
        """
        async with self._line:
            while (wait_s := self._due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            now = start = time.monotonic()
            turns: list[float] = []
            for tokens in n_tokens:
                if turns and start - now > TURNS_S:
                    break
                turns.append(start - now)
                start += max(self._interval_s, tokens * self._token_s)
            self._due_s = start
            return turns

    async def penalise(self, pause_s: float) -> None:
        """Send nothing for ``pause_s`` seconds from now; a longer pause in progress stays."""
        self._due_s = max(self._due_s, time.monotonic() + pause_s)

    async def learn(self, dialect: Dialect) -> Dialect:
        """Add what a client has learnt; returns what all have."""
        self._dialect |= dialect
        return self._dialect


MAX_RETRY_AFTER_S = 300.0
"""Longest wait that a server is granted; a request that it asks to wait longer fails at once."""

MAX_BACKOFF_S = 60.0

_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_BODY_CHARS = 300
_READ_CHARS = 4000  # of a refusal, in which it says how long to wait

_INLINE_BYTES = 2**16
"""Longest body that is parsed in the event loop, in half a millisecond; longer ones are in a thread."""

_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})

MAX_LISTED = 20
"""Most models of a server that a message lists."""


class _Response(NamedTuple):
    """What a server sent; keys, which it may repeat, are hidden in its reason and body."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytearray

    @property
    def text(self) -> str:
        """The body in one line."""
        return clean_text(" ".join(self.body.decode("utf-8", "replace").split()))


@dataclass(frozen=True, slots=True)
class Writing:
    """How a request is written, as the server's refusals of it have taught; ``room`` is what its prompt leaves."""

    dialect: Dialect
    room: int | None = None

    def write(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Write a request's fields as the server takes them."""
        return self.dialect.write({**fields} if self.room is None else {**fields, "max_tokens": self.room})

    @property
    def notes(self) -> list[str]:
        """What is said otherwise."""
        lowered = "max_tokens is lowered where the prompt leaves less room"
        return [*self.dialect.notes] if self.room is None else [*self.dialect.notes, lowered]

    def adapted(self, fields: Mapping[str, Any], least: int, refusal: _Response, known: Dialect) -> Writing | None:
        """Return how to write it after a refusal, with what is ``known`` meanwhile; None: the refusal stands."""
        sent, asked = self.write(fields), fields.get("max_tokens") or 0
        if self.room is None and (room := room_left(refusal.status, refusal.text, asked, least)) is not None:
            return replace(self, room=room)
        better = self.dialect
        if refusal.status in (400, 422):
            better |= known
            if better.write(fields) == sent:
                better = self.dialect.adapted(sent, refusal.text) or self.dialect
        adapted = replace(self, dialect=better)
        return None if adapted.write(fields) == sent else adapted


class OpenAIBackend:
    """Sends each request as one POST, and retries temporary failures."""

    def __init__(self, settings: OpenAIConfig, api_key: str | None = None, limiter: Limiter | None = None) -> None:
        """Check the settings; no connection is opened before the first request.

        Args:
            settings: Server, model, and how it is asked.
            api_key: Sent as a bearer token, never shown.
            limiter: Shared rate limit; None: only Retry-After, for this backend's own requests.

        Raises:
            ConfigError: The URL is not http(s), the key or a header does not fit HTTP, or extra_body is no JSON.
        """
        self._settings, self._model = settings, settings.model
        self._base_url = _checked_url(settings.base_url)
        self._headers = _checked_headers(settings.headers, bool(api_key))
        self._key = (api_key or "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ConfigError(f"the API key in {settings.api_key_env} cannot stand in an HTTP header: correct it")
        self.identity = settings.model_identity
        secrets = find_secrets([{"key": self._key}, self._headers, settings.extra_body])
        secrets |= find_address_secrets(settings.base_url)
        if userinfo := unquote_to_bytes(self._base_url.userinfo):
            secrets.add(base64.b64encode(userinfo).decode())  # as HTTP's Basic sends them
            if self._key or "authorization" in map(str.lower, self._headers):
                raise ConfigError(
                    "base_url has a user, which takes the place of the key in Authorization: leave one out (for "
                    "base_url's, set api_key_env to null)"
                )
        # A header's token without its scheme, and what of an address is percent-encoded.
        secrets |= {word for secret in secrets for word in secret.split() if len(word) >= SECRET_CHARS}
        secrets |= {quote(secret, safe="") for secret in secrets}
        self._redact = Redaction(secrets)
        self._limiter: Limiter = limiter or TokenBucket(None)
        self._client: httpx.AsyncClient | None = None
        self._listed_models: list[str] | None = None
        self._dialect = Dialect()

    async def chat(self, request: ChatRequest) -> Reply:
        """Ask the server, up to ``max_tries`` times.

        Raises:
            ContextOverflowError: The server refuses the prompt's length, or would for certain.
            TransientModelError: Every try failed; the message has their number and the last reason.
            ModelError: The server refuses the request.
        """
        self.check_length(request)
        return await self.retry(lambda n_failed: self._ask(with_other_seed(request, n_failed)))

    def check_length(self, request: ChatRequest) -> None:
        """Raise a ``ContextOverflowError`` where the server would refuse a prompt for certain."""
        window = self._settings.window_tokens
        if window != "auto" and request.least_tokens > window:
            raise ContextOverflowError(
                f"the prompt has {request.n_chars} characters, at least {request.least_tokens} tokens, but the window "
                f"of {self._model} is {window} tokens: let the system's settings give less context, or "
                "raise deployments.*.window_tokens if the model takes more"
            )

    async def fields_of(self, request: ChatRequest) -> dict[str, Any]:
        """Return a request's JSON values before any server has refused one of them."""
        return await completion_body(request, self._model, self._settings.schema_mode) | self._settings.extra_body

    @property
    def writing(self) -> Writing:
        """How requests are written, as far as is known."""
        return Writing(self._dialect)

    async def read_outcome(self, request: ChatRequest, writing: Writing, status: int, values: Any) -> Reply | Writing:
        """Read what a batch says of a request: the reply, or how to write it in the next one.

        Raises:
            UnfinishedReplyError: The reply failed: another seed may mend it.
            TransientModelError: It failed, and may succeed another time.
            ModelError: The server refuses it.
        """

        def respond() -> _Response:
            return _Response(status, "", {}, bytearray(json.dumps(values).encode("ascii")))

        outcome = self._read(status, values, request.n_chars, respond)
        if isinstance(outcome, Reply):
            return await self._finished(outcome, writing)
        fields = await self.fields_of(request)
        adapted = writing.adapted(fields, least_tokens(request.schema), outcome, self._dialect)
        if adapted is None:
            raise await self._named_refusal(outcome)
        return adapted

    async def post(self, path: str, fields: Mapping[str, Any], n_chars: int, read: Callable[[Any], T]) -> T:
        """Send JSON values to another path than that of chats, up to ``max_tries`` times.

        Args:
            path: Below ``base_url``.
            fields: The request; ``extra_body`` is merged into it.
            n_chars: Characters that count in a limit of tokens.
            read: Reads the reply's JSON values, in a thread; what it raises goes on to the caller.

        Raises:
            ContextOverflowError: The server refuses the request's length.
            TransientModelError: Every try failed; the message has their number and the last reason.
            ModelError: The server refuses the request.
        """
        body = json.dumps({**fields, **self._settings.extra_body}).encode("ascii")

        def read_body(response: _Response) -> T:
            values = self._parse(response.body)
            if isinstance(values, dict) and values.get("error"):  # as proxies answer for a server that refused
                raise TransientModelError(f"an error in a successful response: {response.text[:_BODY_CHARS]}")
            return read(values)

        async def send(_: int) -> T:
            await self._limiter.acquire(n_chars // CHARS_PER_TOKEN)
            response = await self._fetch("POST", path, self._settings.timeout_s, body)
            if 200 <= response.status < 300:
                return await asyncio.to_thread(read_body, response)
            raise self._refusal(response, path)

        return await self.retry(send)

    async def retry(self, send: Callable[[int], Awaitable[T]]) -> T:
        """Send a request, up to ``max_tries`` times, while the failure is temporary.

        ``send`` is told how many replies have failed that another seed may mend.
        """
        # Retries of a server's temporary failures alone. The others: a lost replica (engine/serving/handles), a blank
        # answer (the system's attempts), a lost actor (engine/actors/pool). docs/operations.md has their product.
        failure, n_failed = TransientModelError("never tried"), 0
        for tries in range(1, self._settings.max_tries + 1):
            try:
                return await send(n_failed)
            except TransientModelError as error:
                failure = error
            n_failed += isinstance(failure, UnfinishedReplyError)
            if failure.retry_after_s is not None:
                if failure.retry_after_s > MAX_RETRY_AFTER_S:
                    raise TransientModelError(
                        f"{self._model} at {self.shown_url} asks to wait {failure.retry_after_s:,.0f} s, more than "
                        f"{MAX_RETRY_AFTER_S:g} s: repeat the command then ({failure})"
                    )
                await self._limiter.penalise(failure.retry_after_s)
            if tries < self._settings.max_tries:
                # Full jitter (Brooker 2015), also after Retry-After: otherwise all waiting requests return at once.
                bound_s = min(MAX_BACKOFF_S, self._settings.backoff_s * 2 ** min(tries - 1, 30))
                jitter_s = random.uniform(0.0, bound_s)  # noqa: S311  # a pause is no secret
                await asyncio.sleep((failure.retry_after_s or 0.0) + jitter_s)
        raise TransientModelError(
            f"{self._model} at {self.shown_url}: gave up after {tries} tries, the last one: {failure}",
            failure.retry_after_s,
        )

    async def _ask(self, request: ChatRequest) -> Reply:
        """Send a request, and again for everything that the server refuses and takes otherwise.

        What is changed for the server's sake is kept when the changed request has succeeded; a shorter reply, where the
        prompt leaves no more room, is this request's own.
        """
        fields, writing = await self.fields_of(request), self.writing
        n_tokens = request.n_chars // CHARS_PER_TOKEN + request.max_tokens
        while True:
            await self._limiter.acquire(n_tokens)
            outcome = await self._post(writing.write(fields), request.n_chars)
            if isinstance(outcome, Reply):
                return await self._finished(outcome, writing)
            # What others have learnt while this request was under way.
            known = await self._limiter.learn(Dialect()) if outcome.status in (400, 422) else Dialect()
            adapted = writing.adapted(fields, least_tokens(request.schema), outcome, known)
            if adapted is None:
                raise await self._named_refusal(outcome)
            writing = adapted

    async def _finished(self, reply: Reply, writing: Writing) -> Reply:
        """Keep how a request was written that has succeeded; returns its reply with the notes on it."""
        if writing.dialect != self._dialect:
            self._dialect = await self._limiter.learn(writing.dialect)
        notes = [*writing.notes, *filter(None, [reply.note])]
        return replace(reply, note="; ".join(notes), server=self._settings.address_digest)

    async def models(self, timeout_s: float | None = None) -> dict[str, int | None]:
        """List the server's models by name, each with its window in tokens where the server says it, as vLLM does.

        Raises:
            TransientModelError: The server does not answer.
            ModelError: It refuses the key, or has no such list.
        """
        try:
            response = await self._fetch("GET", "models", timeout_s or self._settings.timeout_s)
        except TransientModelError as error:
            raise TransientModelError(f"{self.shown_url}: {error}") from None
        where = f"{self.shown_url}/models: HTTP {response.status}"
        if response.status in (401, 403):
            raise ModelError(f"{where}: {self._way_out(response.status)}")
        try:
            listed = json.loads(response.body)["data"]
            # A name of several lines would print lines of its own.
            names = (" ".join(clean_text(str(entry["id"])).split()) for entry in listed)
            windows = dict(zip(names, (entry.get("max_model_len") for entry in listed), strict=True))
        except (AttributeError, ValueError, RecursionError, LookupError, TypeError):
            raise ModelError(f"{where}, no list of models") from None
        return {name: window if isinstance(window, int) else None for name, window in sorted(windows.items())}

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @property
    def settings(self) -> OpenAIConfig:
        """The deployment's settings."""
        return self._settings

    @property
    def shown_url(self) -> str:
        """Its URL without parts that may be secret."""
        return str(self._base_url.copy_with(userinfo=b"", query=None, fragment=None))

    async def _post(self, sent: Mapping[str, Any], prompt_chars: int) -> Reply | _Response:
        """Send a request once; returns its reply, or the response that refuses it for good.

        Raises:
            TransientModelError: It failed, and may succeed another time.
        """
        body = json.dumps(sent).encode("ascii")
        response = await self._fetch("POST", "chat/completions", self._settings.timeout_s, body)
        values = None
        if 200 <= response.status < 300:
            # A large body's objects take far longer to make than the loop's other calls may wait.
            small = len(response.body) <= _INLINE_BYTES
            values = self._parse(response.body) if small else await asyncio.to_thread(self._parse, response.body)
        return self._read(response.status, values, prompt_chars, lambda: response)

    def _read(self, status: int, values: Any, prompt_chars: int, respond: Callable[[], _Response]) -> Reply | _Response:
        """Read a response, whose ``values`` are its body's if it succeeded; see ``_post``.

        Only where there is no reply is it asked for whole: of a batch's line, its body is written again for it.
        """
        if 200 <= status < 300:
            if (refused := error_status(values)) is None:
                try:
                    return read_completion(values, prompt_chars)
                except ModelError as error:
                    error.args = (f"{error}: {respond().text[:_BODY_CHARS]}",)
                    raise
            status = refused
        response = respond()._replace(status=status)
        if (withheld := _failed_generation(response)) is not None:
            values = {"choices": [{"message": {"content": withheld}}]}
            return read_completion(values, prompt_chars)
        refusal = self._refusal(response)
        if isinstance(refusal, TransientModelError):
            raise refusal
        return response

    async def _named_refusal(self, response: _Response) -> ModelError:
        """Return the error of a refusal, with the models that the server has if it has not ours."""
        refusal = self._refusal(response)
        if response.status not in (400, 404) or "model" not in response.text.lower():
            return refusal
        named = await self.with_models(str(refusal))
        return (RefusedAccessError if named != str(refusal) else type(refusal))(named)

    async def _fetch(self, method: str, path: str, timeout_s: float, content: bytes | None = None) -> _Response:
        """Send one request and read the response.

        Raises:
            TransientModelError: There is no response within ``timeout_s``.
            ModelError: The body is larger than the bound.
        """
        import httpx

        if self._client is None:
            self._client = self.new_client()  # inside the event loop that will use it
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client.stream(method, path, content=content, headers=headers) as response,
            ):
                body = await self.read_body(response)
        except (TimeoutError, httpx.TimeoutException):
            raise TransientModelError(f"no reply within timeout_s of {timeout_s:g} s{self._by_proxy()}") from None
        except httpx.HTTPError as error:
            raise self.connection_error(error) from None
        return _Response(response.status_code, self._reason(response), response.headers, body)

    # The border: what a server's words pass on their way in. Nothing behind it hides keys again.

    def hide(self, received: bytes | bytearray) -> bytearray:
        """Return bytes that a server sent with ``[key]`` for each secret that it repeats."""
        text = received.decode("utf-8", "surrogateescape")
        hidden = self._redact(text)
        return bytearray(received if hidden == text else hidden.encode("utf-8", "surrogateescape"))

    def connection_error(self, error: BaseException) -> TransientModelError:
        """Return the error of a connection that failed: httpx quotes headers that it cannot read."""
        return TransientModelError(self._redact(f"{type(error).__name__}: {error}") + self._by_proxy())

    def _reason(self, response: httpx.Response) -> str:
        return self._redact(clean_text(response.reason_phrase))

    def _is_loopback(self) -> bool:
        host = self._base_url.host
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def _by_proxy(self) -> str:
        """Name the proxy that requests go by, without its user: what fails may be that and not the server."""
        if self._is_loopback() or proxy_bypass(self._base_url.host):
            return ""
        proxies = getproxies()  # as httpx does
        proxy = proxies.get(self._base_url.scheme) or proxies.get("all") or ""
        return f" by the proxy {proxy.rpartition('@')[2]} of the environment" if proxy else ""

    def _parse(self, body: bytearray) -> Any:
        """Parse a body; of a stream's events, which may each hold a piece of a key, what they are together."""
        values = load_values(body)
        return values if body.lstrip().startswith((b"{", b"[")) else plain(values, self._redact)

    async def with_models(self, refusal: str) -> str:
        """Add to a refusal which models the server has, unless ours is one of them; it is asked once."""
        if self._listed_models is None:
            try:
                self._listed_models = list(await self.models())
            except ModelError:  # a server without a list: its refusal says enough
                self._listed_models = [self._model]
        if self._model in self._listed_models or "is not on the server" in refusal:
            return refusal
        more = len(self._listed_models) - MAX_LISTED
        listed = ", ".join(self._listed_models[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
        guess = did_you_mean(self._model, self._listed_models)
        return f"model {self._model!r} is not on the server, which has {listed or 'none'}{guess} ({refusal})"

    def new_client(self, hooks: Mapping[str, list[Callable[..., Any]]] | None = None) -> httpx.AsyncClient:
        """Make an HTTP client of the server, with httpx's event hooks.

        Raises:
            TransientModelError: The proxy or certificate that the environment names cannot be used.
        """
        import httpx

        for name in ("httpx", "httpcore"):  # they log what the server says, which may be the key
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            # One request per connection: a proxy may answer twice, a gateway's time-out page be followed by the late
            # reply, and what comes on a used connection would be read as the reply to the next request.
            return httpx.AsyncClient(
                base_url=self._base_url.copy_with(query=None),
                params=self._base_url.params,
                headers=self._headers
                | {"Accept-Encoding": "gzip, deflate", "Connection": "close"}
                | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # a reply changes no later request
                timeout=None,  # noqa: S113  # the time-out in _fetch covers the whole reply, not each read
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                mounts=dict.fromkeys(("http://", "https://", "all://"))
                if self._is_loopback()
                else None,  # no proxy reaches this machine itself
                event_hooks=hooks,
            )
        except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
            raise TransientModelError(
                f"the proxy or certificate that the environment names cannot be used ({type(error).__name__}): correct "
                "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE (for a SOCKS proxy: pip install "
                "'httpx[socks]')"
            ) from None

    def check_encoding(self, response: httpx.Response) -> None:
        """Raise a ``ModelError`` where a body is packed in a way that may make gigabytes of one part."""
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in _ENCODINGS:
            raise ModelError(f"{self._model} at {self.shown_url}: the Content-Encoding is other than gzip and deflate")

    async def read_body(self, response: httpx.Response) -> bytearray:
        """Read a body, up to ``MOST_MIB``, with keys hidden.

        Raises:
            ModelError: It is larger; or see ``check_encoding``.
        """
        body, most_mib = bytearray(), self._settings.MOST_MIB
        self.check_encoding(response)
        async for part in response.aiter_bytes():
            body += part
            if len(body) > most_mib * 2**20:
                raise ModelError(
                    f"{self._model} at {self.shown_url}: the body has more than {most_mib:g} MiB: "
                    "ask for less at once, or name another server"
                )
        return self.hide(body) if len(body) <= _INLINE_BYTES else await asyncio.to_thread(self.hide, body)

    async def refusal(self, response: httpx.Response, path: str) -> ModelError:
        """Return the error of a response that succeeded not, to a request of a path below ``base_url``."""
        body = await self.read_body(response)
        return self._refusal(_Response(response.status_code, self._reason(response), response.headers, body), path)

    def _refusal(self, response: _Response, path: str = "chat/completions") -> ModelError:
        status, text = response.status, response.text
        refused = f"HTTP {status} {response.reason}: {text[:_BODY_CHARS]}"
        too_long, wait_s = refuses_length(status, text), told_wait_s(response.headers, text[:_READ_CHARS])
        where = f"{self._model} at {self.shown_url}/{path}"
        if refuses_access(status, text, wait_s):
            return RefusedAccessError(f"{where}: {refused}: {self._way_out(status, path)}")
        if status in _TRANSIENT_STATUS or (status >= 500 and not too_long):
            return TransientModelError(refused, wait_s)
        if too_long:
            way_out = (
                f"lower deployments.*.window_tokens, now {self._settings.window_tokens}, to what the server takes"
                if path == "chat/completions"
                else "even one character of a text is too long beside the rest: shorten the prompt or query, or raise "
                "the bound of the server or of a proxy before it"
            )
            return ContextOverflowError(f"{where} refuses the prompt's length: {refused}: {way_out}")
        return ModelError(f"{where}: {refused}: {self._way_out(status, path)}")

    def _way_out(self, status: int, path: str = "chat/completions") -> str:
        if status in (401, 403) and self._settings.api_key_env is None:
            return "set deployments.*.api_key_env to the key's variable"
        if status in (401, 403):
            name = self._settings.api_key_env
            return f"the key in {name} is wrong, or may not do this: `export {name}=…` with one that may"
        if status in (402, 429):
            return "its credit is used up: top up the account, then repeat the command, which asks only what is left"
        if status in (404, 405, 501) and path.startswith(("files", "batches")):
            return "the server has no batches: set deployments.*.batch to false"
        if status == 404 or 300 <= status < 400:
            return "check deployments.*.base_url (it ends with the version, such as /v1) and deployments.*.model"
        if path != "chat/completions":
            return "the server does not take this request: check deployments.*.extra_body"
        return "the server does not take this request: check deployments.*.schema_mode and extra_body"


def _checked_url(base_url: str) -> httpx.URL:
    import httpx

    try:
        url = httpx.URL(base_url.rstrip("/"))
        if not 0 < (url.port or 1) < 65536:
            raise httpx.InvalidURL(f"Invalid port: {url.port}")
        is_address = bool(url.host)  # which may raise
    except (httpx.InvalidURL, UnicodeError) as error:
        if "@" in base_url:  # the reason may name a part of the password
            raise ConfigError("base_url is no URL: percent-encode the user and password in it (%2F for /)") from None
        raise ConfigError(f"base_url is no URL ({error}): write one such as http://127.0.0.1:8000/v1") from error
    if url.scheme not in ("http", "https") or not is_address:
        raise ConfigError(f"base_url has the scheme {url.scheme!r} and the host {url.host!r}: write http(s)://HOST/v1")
    return url


_OWN_HEADERS = frozenset(
    {"content-type", "content-length", "accept-encoding", "connection", "host", "transfer-encoding"}
)


def _checked_headers(headers: Mapping[str, str], has_key: bool) -> dict[str, str]:
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or name.lower() in _OWN_HEADERS:
            raise ConfigError(f"headers: {name!r} cannot be set: name another header")
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"headers: the value of {name} cannot stand in an HTTP header: correct it")
        if has_key and name.lower() == "authorization":
            raise ConfigError("headers: Authorization is set beside api_key_env: set api_key_env to null")
    return dict(headers)


def _failed_generation(response: _Response) -> str | None:
    """Read the text that a server withheld since it is not what its own check of the schema expects; None: no such.

    Raises:
        UnfinishedReplyError: It withheld no JSON object, so that another try may have one.
    """
    if response.status != 400 or b"json_validate_failed" not in response.body:
        return None
    error = as_object(as_object(loads(response.body.decode("utf-8", "replace"))).get("error"))
    text = clean_text(str(error.get("failed_generation") or ""))
    if not any(isinstance(found.value, dict) for found in find_values(Reply(text))):
        raise UnfinishedReplyError(f"the server's own check of the reply failed: {response.text[:_BODY_CHARS]}")
    return text
