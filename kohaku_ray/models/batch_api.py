"""Batch APIs of providers: files of chat completions, half the price, done within a day (`/files`, `/batches`).

The API is OpenAI's (https://platform.openai.com/docs/api-reference/batch), which Groq, Azure, vLLM's gateways and
LiteLLM speak too.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from kohaku_ray.errors import TransientModelError
from kohaku_ray.models.completion import as_object
from kohaku_ray.models.json_text import loads
from kohaku_ray.models.openai import BatchConfig, OpenAIBackend
from kohaku_ray.values.read import clean_text

URL = "/v1/chat/completions"
"""What a line calls, whatever the server's own address is."""

NAME = "kohaku_ray"
"""Key of a batch's metadata that holds the name of its record."""

PAGE = 100
"""Batches per request of their list: the most that OpenAI gives."""

SKEW_S = 3600.0
"""Longest difference of two clocks: batches that are older than a record by more are not looked at."""

ENDED = frozenset({"completed", "failed", "expired", "cancelled", "canceled"})
"""States in which a batch stays; novita.ai writes them in capitals."""

CANCELLING = "cancelling"
"""State of a batch that was cancelled and has not ended: it has no files yet."""

TOKEN_LIMIT = "token_limit_exceeded"  # noqa: S105
"""Error of a file beyond the tokens that an account may have in batches at once (openai-python#2084)."""

BYTES_PER_S = 1e6
"""Slowest upload or download of a file that is waited for."""


class LineResult(NamedTuple):
    """What a batch's output or error file says of one call; ``status`` None: it was not made, see ``error``."""

    custom_id: str
    status: int | None
    values: Any
    error: str


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
        return self.status in ENDED


def batch_line(custom_id: str, body: Mapping[str, Any]) -> bytes:
    """Write one call as a line of a batch's file."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": body}).encode("ascii") + b"\n"


def read_line(raw: bytes) -> LineResult | None:
    """Read a line of an output or error file; None: it is none."""
    values = as_object(loads(raw.decode("utf-8", "replace")))
    custom_id, response, error = values.get("custom_id"), as_object(values.get("response")), values.get("error")
    if not isinstance(custom_id, str):
        return None
    status = response.get("status_code")
    told = as_object(error)
    text = clean_text(f"{told.get('code') or 'error'}: {told.get('message') or ''}")[:300] if error else ""
    body = response.get("body")
    body = loads(body) if isinstance(body, str) else body  # Llama Stack 0.7.3 writes its JSON as a text
    return LineResult(custom_id, status if type(status) is int else None, body, text)


def read_state(values: Any) -> BatchState:
    """Read a batch object.

    Raises:
        TransientModelError: It is none.
    """
    batch = as_object(values)
    batch_id, status = batch.get("id"), batch.get("status")
    if not isinstance(batch_id, str) or not isinstance(status, str) or not batch_id:
        raise TransientModelError("the reply is no batch object: it has no id and status")
    # An empty id is no file (kaibo#93); where every line failed there is no output file (kaapi-backend#723).
    files = [batch.get("output_file_id"), batch.get("error_file_id")]
    told = as_object(batch.get("errors")).get("data")
    errors = [as_object(error) for error in told] if isinstance(told, list) else []
    counts = as_object(batch.get("request_counts"))
    n_replies, n_failed = (n if type(n := counts.get(name)) is int else 0 for name in ("completed", "failed"))
    return BatchState(
        batch_id,
        status.casefold(),
        tuple(file for file in files if isinstance(file, str) and file),
        n_replies + n_failed,
        bool(files[0]) or not n_replies,
        tuple((_line_number(error), str(error.get("code")), clean_text(str(error.get("message")))) for error in errors),
    )


def _line_number(error: Mapping[str, Any]) -> int | None:
    line = error.get("line")
    return line if type(line) is int and line > 0 else None


class BatchApi:
    """A server's files and batches, by the client of its chats."""

    def __init__(self, server: OpenAIBackend, settings: BatchConfig) -> None:
        self._server, self._settings = server, settings
        self._file_s = settings.max_mb * 1e6 / BYTES_PER_S

    async def check(self) -> None:
        """Ask for the list of batches; a ``ModelError`` if the server has none, or refuses the key."""
        await self._server.request("GET", "batches?limit=1")

    async def upload(self, name: str, file: IO[bytes]) -> str:
        """Upload a file of lines and return its id."""
        values = await self._server.request(
            "POST", "files", upload=(f"{name}.jsonl", file, {"purpose": "batch"}), longer_s=self._file_s
        )
        file_id = as_object(values).get("id")
        if not isinstance(file_id, str) or not file_id:
            raise TransientModelError("the reply to the upload of a file has no id")
        return file_id

    async def create(self, file_id: str, name: str) -> str:
        """Make a file a batch, in one try, and return the batch's id.

        Raises:
            TransientModelError: There is no answer: it may have been made. ``find`` tells.
        """
        fields = {
            "input_file_id": file_id,
            "endpoint": URL,
            "completion_window": self._settings.window,
            "metadata": {NAME: name},
        }
        return read_state(await self._server.request("POST", "batches", fields=fields, tries=1)).batch_id

    async def find(self, name: str, created: float) -> str | None:
        """Find the batch of a record, which was ``created`` at a time of ``time.time``, in the server's list."""
        after = ""
        while True:
            listed = as_object(await self._server.request("GET", f"batches?limit={PAGE}{after}"))
            batches = [as_object(batch) for batch in listed.get("data") or ()]
            for batch in batches:
                if as_object(batch.get("metadata")).get(NAME) == name:
                    return read_state(batch).batch_id
            if not batches or not listed.get("has_more"):
                return None
            oldest = batches[-1].get("created_at")  # newest first
            if isinstance(oldest, (int, float)) and oldest < created - SKEW_S:
                return None
            after = f"&after={batches[-1].get('id')}"

    async def retrieve(self, batch_id: str) -> BatchState | None:
        """Look at a batch; None: the server knows none of this id."""
        values = await self._server.request("GET", f"batches/{batch_id}", may_lack=True)
        return None if values is None else read_state(values)

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch: it is ``CANCELLING`` for minutes, and ends with the lines that are done."""
        await self._server.request("POST", f"batches/{batch_id}/cancel", may_lack=True)

    async def results(self, file_id: str) -> AsyncIterator[LineResult]:
        """Download an output or error file and yield its lines, in the server's order.

        Raises:
            LookupError: The server has no such file.
        """
        with tempfile.TemporaryFile() as file:
            path = f"files/{file_id}/content"
            if await self._server.request("GET", path, into=file, longer_s=self._file_s, may_lack=True) is None:
                raise LookupError(file_id)
            file.seek(0)
            for raw in file:  # ended by b"\n" alone, and not by what else ends a line of text
                if (result := read_line(raw)) is not None:
                    yield result
