"""The batch API of `kit.fake_openai`'s server: files and batches, which end late, in part or never, as they are told.

Limits and shapes are OpenAI's (https://platform.openai.com/docs/api-reference/batch): 50,000 lines and 200 MB per file,
a list of at most 100 batches per page, newest first; lines come back in any order; a refused file is a failed batch
with `errors.data`, of which each has a code and a line or null (openai-python#2084, stdapi.ai#240); where no line
succeeded there is no output file (kaapi-backend#723); an empty id is no file (kaibo#93).
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kit.local_server import Action, error_body, not_found

EXPIRED, DROPPED, DOUBLED = "expired", "dropped", "doubled"


@dataclass
class Batch:
    """A batch: its lines as they were sent, and when it ends."""

    index: int
    file_id: str
    lines: list[dict[str, Any]]
    metadata: dict[str, str]
    created: float
    ends: float
    errors: list[dict[str, Any]] = field(default_factory=list)
    cancelled: bool = False
    files: dict[str, bytes] | None = None

    @property
    def batch_id(self) -> str:
        return f"batch_{self.index}"


@dataclass
class FakeBatches:
    """What the API does: batches end after `delay_s`; the rest is scripted.

    `line(batch, line)` is the `Action` of a line, one of EXPIRED, DROPPED, DOUBLED, or None for the default reply;
    `refuse(batch)` are the errors of a file that is refused; `upload` and `create` are what happens to their requests,
    by number: an `Action` with `reset` is sent after the work was done; `look`, `cancel`, `content` and `listed` are
    those of the others. At `n_nameless` looks an ended batch does not name its files. A cancelled batch is cancelling
    for `cancelling_s`, without files, and then has the replies of its first lines. The list shows a batch after
    `lag_s`; `called` are other names of states; `rewrite` changes the files that are downloaded.
    """

    delay_s: float = 0.0
    line: Callable[[Batch, dict[str, Any]], Any] = lambda batch, line: None
    refuse: Callable[[Batch], list[dict[str, Any]]] = lambda batch: []
    upload: Callable[[int], Action | None] = lambda index: None
    create: Callable[[int], Action | None] = lambda index: None
    look: Callable[[int], Action | None] = lambda index: None
    cancel: Callable[[int], Action | None] = lambda index: None
    content: Callable[[int], Action | None] = lambda index: None
    listed: Callable[[int], Action | None] = lambda index: None
    lag_s: float = 0.0
    called: dict[str, str] = field(default_factory=dict)
    rewrite: Callable[[bytes], bytes] = bytes
    n_nameless: int = 0
    cancelling_s: float = 0.0
    n_done_at_cancel: int = 0
    most_lines: int = 50_000
    most_bytes: int = 200_000_000
    has_list: bool = True
    answer: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.uploads: dict[str, bytes] = {}
        self.batches: list[Batch] = []
        self.headers: list[dict[str, str]] = []  # of creations
        self.paid: Counter[str] = Counter()  # replies by custom_id
        self.n_uploads = self.n_looks = self.n_creates = self.n_cancels = self.n_contents = self.n_lists = 0

    def post(self, path: str, headers: dict[str, str], raw: bytes) -> Action:
        with self.lock:
            if path == "/v1/files":
                return self._upload(headers, raw)
            if path == "/v1/batches":
                self.headers.append(headers)
                return self._create(json.loads(raw))
            if found := re.fullmatch(r"/v1/batches/(batch_\d+)/cancel", path):
                self.n_cancels += 1
                if (action := self.cancel(self.n_cancels - 1)) is not None:
                    return action
                batch = self._find(found[1])
                if batch.ends > time.time() and not batch.cancelled:
                    batch.cancelled, batch.ends = True, time.time() + self.cancelling_s
                return Action(body=self._object(batch))
        return not_found(path)

    def get(self, path: str) -> Action:
        with self.lock:
            name, _, query = path.partition("?")
            if name == "/v1/batches" and self.has_list:
                self.n_lists += 1
                if (action := self.listed(self.n_lists - 1)) is not None:
                    return action
                return Action(body=self._list(dict(part.split("=") for part in query.split("&") if part)))
            if found := re.fullmatch(r"/v1/batches/(batch_\d+)", name):
                self.n_looks += 1
                if (action := self.look(self.n_looks - 1)) is not None:
                    return action
                batch = self._find(found[1])
                return Action(body=self._object(batch)) if batch else not_found(path)
            if found := re.fullmatch(r"/v1/files/((\w+)-(?:output|errors))/content", name):
                self.n_contents += 1
                if (action := self.content(self.n_contents - 1)) is not None:
                    return action
                files = self._files(self._find(found[2]))
                return Action(body=self.rewrite(files[found[1]])) if found[1] in files else not_found(path)
        return not_found(path)

    def end(self) -> None:
        """End all batches, and later ones at once."""
        with self.lock:
            self.delay_s = 0.0
            for batch in self.batches:
                batch.ends = min(batch.ends, time.time())

    @property
    def files(self) -> list[list[str]]:
        """The custom ids of each batch's lines."""
        return [[line["custom_id"] for line in batch.lines] for batch in self.batches]

    def _upload(self, headers: dict[str, str], raw: bytes) -> Action:
        index, self.n_uploads = self.n_uploads, self.n_uploads + 1
        if (action := self.upload(index)) is not None:
            return action
        boundary = headers["content-type"].partition("boundary=")[2].encode()
        parts = {}
        for part in raw.split(b"--" + boundary)[1:-1]:
            head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
            parts[re.search(rb'name="(\w+)"', head)[1].decode()] = content.removesuffix(b"\r\n")
        if parts.get("purpose") != b"batch":
            return Action(400, error_body(f"purpose is {parts.get('purpose')!r}"))
        if len(parts["file"]) > self.most_bytes:
            return Action(413, error_body("the file is too large"))
        file_id = f"file_{index}"
        self.uploads[file_id] = parts["file"]
        return Action(body={"id": file_id, "object": "file", "purpose": "batch", "bytes": len(parts["file"])})

    def _create(self, body: dict[str, Any]) -> Action:
        action = self.create(self.n_creates)
        self.n_creates += 1
        if action is not None and not action.reset:
            return action
        assert body["endpoint"] == "/v1/chat/completions", body
        assert all(len(key) <= 64 and len(value) <= 512 for key, value in body["metadata"].items())
        lines = [json.loads(line) for line in self.uploads[body["input_file_id"]].splitlines()]
        now = time.time()
        batch = Batch(len(self.batches), body["input_file_id"], lines, body["metadata"], now, now + self.delay_s)
        batch.errors = self._faults(batch) or self.refuse(batch)
        self.batches.append(batch)
        return action or Action(body=self._object(batch))

    def _faults(self, batch: Batch) -> list[dict[str, Any]]:
        """What OpenAI refuses a file for: too many lines, an id twice, several models."""
        ids = Counter(line["custom_id"] for line in batch.lines)
        faults = [
            fault("duplicate_custom_id", number)
            for number, line in enumerate(batch.lines, 1)
            if ids[line["custom_id"]] > 1
        ]
        if len(batch.lines) > self.most_lines:
            faults.append(fault("too_many_tasks"))
        if len({line["body"]["model"] for line in batch.lines}) > 1:
            faults.append(fault("model_mismatch"))
        return faults

    def _find(self, batch_id: str) -> Batch | None:
        return next((batch for batch in self.batches if batch.batch_id == batch_id), None)

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        is_seen = time.time() - self.lag_s
        newest = [self._object(batch) for batch in reversed(self.batches) if batch.created <= is_seen]
        if after := query.get("after"):
            newest = newest[[batch["id"] for batch in newest].index(after) + 1 :]
        limit = min(int(query.get("limit", 20)), 100)
        return {"object": "list", "data": newest[:limit], "has_more": len(newest) > limit}

    def _object(self, batch: Batch) -> dict[str, Any]:
        has_ended, files = time.time() >= batch.ends, {}
        status = "cancelling" if batch.cancelled else "in_progress"
        if batch.errors:
            status = "failed"
        elif has_ended:
            files = self._files(batch)
            expired = any(self.line(batch, line) == EXPIRED for line in batch.lines)
            status = "cancelled" if batch.cancelled else "expired" if expired else "completed"
        n_done = len(batch.lines) if has_ended and not batch.errors else 0
        if files and self.n_nameless > 0:
            files, self.n_nameless = {}, self.n_nameless - 1
        name = batch.batch_id
        return {
            "id": name,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
            "input_file_id": batch.file_id,
            "completion_window": "24h",
            "status": self.called.get(status, status),
            "output_file_id": f"{name}-output" if f"{name}-output" in files else None,
            "error_file_id": f"{name}-errors" if f"{name}-errors" in files else "",
            "created_at": int(batch.created),
            "metadata": batch.metadata,
            "request_counts": {"total": len(batch.lines), "completed": n_done, "failed": 0},
        }

    def _files(self, batch: Batch | None) -> dict[str, bytes]:
        """The output and error files of a batch that has ended, made and paid once; lines in any order."""
        if batch is None:
            return {}
        if batch.files is None:
            written: dict[str, list[bytes]] = {"output": [], "errors": []}
            for number, line in enumerate(batch.lines):
                is_left = batch.cancelled and number >= self.n_done_at_cancel
                action = "cancelled" if is_left else self.line(batch, line)
                if action == DROPPED:
                    continue
                told = {"id": f"batch_req_{len(written['output'])}", "custom_id": line["custom_id"], "error": None}
                if action in (EXPIRED, "cancelled"):
                    told |= {"response": None, "error": {"code": f"batch_{action}", "message": f"The batch {action}."}}
                else:
                    is_reply = action in (None, DOUBLED) or action.body is None
                    body = self.answer(line["body"]) if is_reply else action.body
                    status = action.status if isinstance(action, Action) else 200
                    told["response"] = {"status_code": status, "request_id": "req_0", "body": body}
                if told["error"] is None and told["response"]["status_code"] == 200:
                    self.paid[line["custom_id"]] += 1
                    written["output"] += [json.dumps(told).encode() + b"\n"] * (2 if action == DOUBLED else 1)
                else:
                    written["errors"].append(json.dumps(told).encode() + b"\n")
            for lines in written.values():
                random.Random(batch.index).shuffle(lines)
            batch.files = {f"{batch.batch_id}-{name}": b"".join(lines) for name, lines in written.items() if lines}
        return batch.files


def fault(code: str, line: int | None = None, message: str = "refused") -> dict[str, Any]:
    """An error of a batch's file, as a failed batch has it."""
    return {"code": code, "line": line, "message": message, "param": None}
