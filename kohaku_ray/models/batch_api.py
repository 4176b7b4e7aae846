"""Batch APIs of providers: files of chat completions, half the price, done within a day, by OpenAI's own client.

Groq, Azure, vLLM's gateways and LiteLLM speak the same API (https://platform.openai.com/docs/api-reference/batch).
All text that a server sends enters by ``BatchApi._receive`` or ``read_results``, where keys are hidden in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from kohaku_ray.errors import ModelError, TransientModelError
from kohaku_ray.models.completion import as_object, load_values
from kohaku_ray.models.json_text import loads
from kohaku_ray.models.openai import MOST_BYTES, BatchConfig, OpenAIBackend
from kohaku_ray.values.read import clean_text

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

URL = "/v1/chat/completions"
"""What a line calls, whatever the server's own address is."""

NAME = "kohaku_ray"
"""Key of a batch's metadata that holds the name of its record."""

PAGE = 100
"""Batches per request of their list: the most that OpenAI gives."""

MOST_PAGES = 1000
"""Pages that are looked through for a batch: a hundred thousand batches, OpenAI's limit of two days."""

SKEW_S = 3600.0
"""Longest difference of two clocks: batches that are older than a record by more are not looked at."""

BYTES_PER_S = 1e6
"""Slowest upload or download of a file that is waited for."""

CANCELLING = "cancelling"
"""State of a batch that was cancelled and has not ended: it has no files yet."""

LIVE = frozenset({"validating", "queued", "pending", "in_progress", "running", "finalizing", CANCELLING})
"""States in which a batch goes on, whatever files it names; any unknown one ends with its files."""

PARTIAL = frozenset({"failed", "expired", "cancelled", "canceled"})
"""States of a batch that ended without all of its replies."""

TOKEN_LIMIT = "token_limit_exceeded"  # noqa: S105
"""Error of a file beyond the tokens that an account may have in batches at once (openai-python#2084)."""

_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([^"]*)"')
_SHOWN_CHARS = 200


class RateLimitError(TransientModelError):
    """The server takes no more requests for now (429), and has not done this one."""


class UnansweredError(ModelError):
    """A batch may have been created: the request was sent, and its answer was lost or says neither."""


class MissingError(ModelError):
    """The server has nothing of this name (404)."""


class LineResult(NamedTuple):
    """What a batch's output or error file says of one call; ``status`` None: it was not made, see ``error``."""

    custom_id: str
    status: int | None
    values: Any
    error: str
    is_final: bool = False  # its reply is there and too large: another batch would bring it again


@dataclass(frozen=True, slots=True)
class BatchState:
    """What a server says of a batch.

    Attributes:
        files: Ids of its output and error files, where it has them.
        has_output: False: it counts replies whose file it does not name yet.
        errors: Of a file that was refused: the line (from 1; None: all of it), the code and the reason.
    """

    batch_id: str
    status: str
    files: tuple[str, ...] = ()
    n_done: int = 0
    has_output: bool = True
    errors: tuple[tuple[int | None, str, str], ...] = ()

    @property
    def is_ended(self) -> bool:
        """Whether it changes no more."""
        return self.status in PARTIAL | {"completed"} or (self.status not in LIVE and bool(self.files))


def batch_line(custom_id: str, body: Mapping[str, Any]) -> bytes:
    """Write one call as a line of a batch's file."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": body}).encode("ascii") + b"\n"


def _whole_number(value: Any) -> int | None:
    """Read a number however it is written; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return int(number) if (number := float(value)).is_integer() else None
    except (ValueError, OverflowError):
        return None


def read_line(text: str) -> LineResult | None:
    """Read a line of an output or error file; None: it is none."""
    values = as_object(loads(text))
    custom_id, response, error = values.get("custom_id"), as_object(values.get("response")), values.get("error")
    if not isinstance(custom_id, (str, int)) or isinstance(custom_id, bool):
        return None
    told, status, body = as_object(error), _whole_number(response.get("status_code")), response.get("body")
    body = loads(body) if isinstance(body, str) else body  # Llama Stack 0.7.3 writes its JSON as a text
    if status is None and as_object(body).get("choices"):
        status = 200  # whatever it wrote for it
    shown = clean_text(f"{told.get('code') or 'error'}: {told.get('message') or error}")[:300] if error else ""
    if status is not None and status < 100:
        status, shown = None, shown or f"its status is {status}"
    return LineResult(str(custom_id).strip().lower(), status, body, shown)


def read_state(values: Any) -> BatchState:
    """Read a batch object.

    Raises:
        TransientModelError: It is none.
    """
    batch = _values_of(values)
    batch_id, status = batch.get("id"), batch.get("status")
    if not isinstance(batch_id, str) or not isinstance(status, str) or not batch_id:
        raise TransientModelError("the reply is no batch object: it has no id and status")
    # An empty id is no file (kaibo#93); where every line failed there is no output file (kaapi-backend#723).
    files = [batch.get("output_file_id"), batch.get("error_file_id")]
    told, counts = as_object(batch.get("errors")).get("data"), as_object(batch.get("request_counts"))
    errors = [as_object(error) for error in told] if isinstance(told, list) else []
    n_replies, n_failed = (max(_whole_number(counts.get(name)) or 0, 0) for name in ("completed", "failed"))
    return BatchState(
        batch_id,
        status.strip().casefold(),  # novita.ai writes it in capitals
        tuple(file for file in files if isinstance(file, str) and file),
        n_replies + n_failed,
        bool(files[0]) or not n_replies,
        tuple(
            (
                number if (number := _whole_number(error.get("line"))) and number > 0 else None,
                clean_text(str(error.get("code"))),
                clean_text(str(error.get("message"))),
            )
            for error in errors
        ),
    )


def _values_of(model: Any) -> dict[str, Any]:
    """Return an object of the SDK, which checks none of its fields, as the JSON object that was sent."""
    return as_object(model.to_dict(warnings=False) if hasattr(model, "to_dict") else model)


class BatchApi:
    """A server's files and batches, by OpenAI's client with the address, key and tries of the server's chats."""

    def __init__(self, server: OpenAIBackend, settings: BatchConfig) -> None:
        """Name the server and its deployment's settings; no connection is opened."""
        self._server, self._settings = server, settings
        self._file_s = MOST_BYTES / BYTES_PER_S
        self._line_bytes = int(server.settings.MOST_MIB * 2**20)
        self._bound = f"{server.settings.MOST_MIB:g} MiB"
        self._sdk: Any = None

    async def close(self) -> None:
        """Close the connections."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.close()

    async def check(self) -> None:
        """Ask for the list of batches; a ``ModelError`` if the server has none, or refuses the key."""
        try:
            await self._ask(lambda sdk: sdk.batches.list(limit=1))
        finally:
            await self.close()

    async def upload(self, name: str, file: IO[bytes]) -> str:
        """Upload a file of lines and return its id."""

        async def send(sdk: Any) -> Any:
            file.seek(0)
            return await sdk.files.create(file=(f"{name}.jsonl", file, "application/jsonl"), purpose="batch")

        file_id = _values_of(await self._ask(send, self._file_s)).get("id")
        if not isinstance(file_id, str) or not file_id:
            raise TransientModelError("the reply to the upload of a file has no id")
        return file_id

    async def create(self, file_id: str, name: str) -> str:
        """Make a file a batch, in one try, and return the batch's id.

        Raises:
            RateLimitError: It was not made.
            UnansweredError: It may have been made. ``find`` tells.
            ModelError: The server refuses it.
        """
        fields: dict[str, Any] = {"completion_window": self._settings.window, "endpoint": URL, "input_file_id": file_id}
        fields |= {"metadata": {NAME: name}, "extra_headers": {"Idempotency-Key": name}}
        try:
            return read_state(await self._ask_once(lambda sdk: sdk.batches.create(**fields))).batch_id
        except RateLimitError:
            raise
        except TransientModelError as error:
            raise UnansweredError(str(error)) from None

    async def find(self, name: str, created: float) -> str | None:
        """Find the batch of a record, which was ``created`` at a time of ``time.time``, in the server's list."""
        page, seen = await self._ask(lambda sdk: sdk.batches.list(limit=PAGE)), set[str]()
        for n_pages in range(1, MOST_PAGES + 1):
            listed = page.data if isinstance(getattr(page, "data", None), list) else []
            batches = [_values_of(batch) for batch in listed]
            for batch in batches:
                if as_object(batch.get("metadata")).get(NAME) == name:
                    return read_state(batch).batch_id
            new = {str(batch.get("id")) for batch in batches} - seen
            oldest = batches[-1].get("created_at") if batches else None  # newest first
            is_older = isinstance(oldest, (int, float)) and oldest < created - SKEW_S
            if not new or is_older or n_pages == MOST_PAGES or not page.has_next_page():
                break
            seen |= new
            page = await self._ask(lambda _, page=page: page.get_next_page())  # type: ignore[misc]
        return None

    async def retrieve(self, batch_id: str) -> BatchState | None:
        """Look at a batch; None: the server knows none of this id."""
        try:
            return read_state(await self._ask(lambda sdk: sdk.batches.retrieve(batch_id)))
        except MissingError:
            return None

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch: it is ``CANCELLING`` for minutes, and ends with the lines that are done."""
        await self._ask(lambda sdk: sdk.batches.cancel(batch_id))

    async def download(self, file_id: str, file: IO[bytes], n_lines: int) -> bool:
        """Download an output or error file of at most so many lines; returns False if the server has no such file.

        Raises:
            ModelError: It is larger than so many lines of ``MOST_MIB``.
        """

        async def receive(sdk: Any) -> None:
            file.seek(0)
            file.truncate()
            async with sdk.files.with_streaming_response.content(file_id) as response:
                async for part in response.iter_bytes():
                    file.write(part)
                    if file.tell() > n_lines * self._line_bytes:
                        raise ModelError(f"file {file_id} of a batch is larger than {n_lines:,} lines of {self._bound}")

        try:
            await self._ask(receive, self._file_s)
        except MissingError:
            return False
        return True

    def read_results(self, file: IO[bytes]) -> Iterator[LineResult | str]:
        """Yield the lines of a downloaded file, in the server's order; the start of one that is none as a text."""
        file.seek(0)
        while raw := file.readline(self._line_bytes):  # ended by b"\n" alone, and not by what else ends a line of text
            text = self._server.hide(raw.removeprefix(b"\xef\xbb\xbf")).decode("utf-8", "replace")
            if len(raw) < self._line_bytes or raw.endswith(b"\n"):
                yield read_line(text) or clean_text(text[:_SHOWN_CHARS])
                continue
            while (more := file.readline(self._line_bytes)) and not more.endswith(b"\n"):
                pass
            custom_id = _CUSTOM_ID.search(raw)
            told = f"its reply has more than {self._bound}"
            whose = custom_id[1].decode("utf-8", "replace") if custom_id else ""
            yield LineResult(whose, None, None, told, is_final=True) if whose else clean_text(text[:_SHOWN_CHARS])

    async def _ask(self, call: Callable[[Any], Awaitable[T]], longer_s: float = 0.0) -> T:
        """Send a request by the SDK, up to ``max_tries`` times."""
        return await self._server.retry(lambda _: self._ask_once(call, longer_s))

    async def _ask_once(self, call: Callable[[Any], Awaitable[T]], longer_s: float = 0.0) -> T:
        """Send a request by the SDK; without an answer within ``timeout_s`` and more, it fails for a moment."""
        import httpx
        import openai

        wait_s = self._server.settings.timeout_s + longer_s
        try:
            async with asyncio.timeout(wait_s):
                return await call(self._open())
        except TimeoutError:
            raise TransientModelError(f"no reply within {wait_s:g} s, of which timeout_s has a part") from None
        except (openai.OpenAIError, httpx.HTTPError) as error:  # the latter of a file that breaks off
            cause = (error.__cause__ if isinstance(error, openai.OpenAIError) else None) or error
            raise self._server.connection_error(cause) from None

    def _open(self) -> Any:
        """Open the SDK's client inside the event loop that will use it; the server's own has its key and headers."""
        if self._sdk is None:
            import openai

            logging.getLogger("openai").setLevel(logging.WARNING)  # it logs what the server says
            self._http = self._server.new_client({"request": [self._send], "response": [self._receive]})
            given: dict[str, Any] = {"http_client": self._http, "base_url": str(self._http.base_url)}
            given["default_headers"] = dict.fromkeys(("OpenAI-Organization", "OpenAI-Project"), openai.Omit())
            self._sdk = openai.AsyncOpenAI(api_key=_NO_KEY, max_retries=0, timeout=None, **given)
        return self._sdk

    async def _send(self, request: httpx.Request) -> None:
        """Put the server's own authorization in the place of the SDK's."""
        if request.headers.get("Authorization") == f"Bearer {_NO_KEY}":
            del request.headers["Authorization"]
            if "Authorization" in self._http.headers:
                request.headers["Authorization"] = self._http.headers["Authorization"]

    async def _receive(self, response: httpx.Response) -> None:
        """Bound what a server sends and hide keys in it, before the SDK reads it; raise what it refuses."""
        import httpx

        path = response.request.url.path.removeprefix(self._http.base_url.path).strip("/")
        given: dict[str, Any] = {"headers": response.headers, "extensions": response.extensions}
        raw = httpx.Response(response.status_code, stream=response.stream, **given)
        if not response.is_success:
            error = await self._server.refusal(raw, path)
            if response.status_code == 404 and path != "batches":
                raise MissingError(str(error))
            if response.status_code == 429 and isinstance(error, TransientModelError):
                raise RateLimitError(str(error), error.retry_after_s)
            raise error
        if path.startswith("files/"):
            return self._server.check_encoding(response)  # of a file's content, which ``download`` bounds
        body = await self._server.read_body(raw)
        if not isinstance(load_values(body), dict):
            raise TransientModelError("the reply is no JSON object")
        response.headers["Content-Type"] = "application/json"
        response.headers.pop("Content-Encoding", None)
        response.stream = httpx.ByteStream(bytes(body))
        return None


_NO_KEY = "none"  # the SDK wants one
