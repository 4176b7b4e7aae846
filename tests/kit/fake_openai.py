"""A chat-completions server on 127.0.0.1 that answers deterministically, or misbehaves by script.

    with FakeOpenAI(script) as server:
        client_of(server.base_url, "fake", ...)
        server.log[0].body, server.log[0].arrived_s, server.n_requests
    server.log[0].images                                  # each image that was sent, decoded and measured

`script(index, body)` says what happens to the request that arrived as number `index`; None is the default reply.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kit.fake_batches import FakeBatches
from kit.local_server import Action, LocalServer, error_body
from kohaku_ray.models.openai import OpenAIBackend, OpenAIConfig


def client_of(base_url: str, model: str, key: str | None = None, *, limiter: Any = None, **settings) -> OpenAIBackend:
    """Make a client; its key is in no variable unless `api_key_env` names one."""
    deployment = OpenAIConfig(base_url=base_url, model=model, **{"api_key_env": None, **settings})
    return OpenAIBackend(deployment, key, limiter)


@dataclass(frozen=True)
class SentImage:
    """An image of a request: pixels, format and digest of its bytes, and whether all text follows it."""

    width: int
    height: int
    format: str
    digest: str
    data: bytes
    before_text: bool


@dataclass(frozen=True)
class Received:
    """One request as it came in."""

    index: int
    arrived_s: float
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def images(self) -> list[SentImage]:
        """The images of all messages, in order."""
        return sent_images(self.body)


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, whether its content is text or a list of parts."""
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def sent_images(body: dict[str, Any]) -> list[SentImage]:
    """Decode and measure every image of a request; one that is no image fails."""
    images = []
    for message in body["messages"]:
        parts = [] if isinstance(message["content"], str) else message["content"]
        first_text = next((position for position, part in enumerate(parts) if part["type"] == "text"), len(parts))
        images += [
            _sent(part, position < first_text) for position, part in enumerate(parts) if part["type"] == "image_url"
        ]
    return images


def _sent(part: dict[str, Any], before_text: bool) -> SentImage:
    from PIL import Image

    head, _, body = part["image_url"]["url"].partition(",")
    assert re.fullmatch(r"data:image/\w+;base64", head), head
    data = base64.b64decode(body, validate=True)
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        digest = hashlib.sha256(data).hexdigest()[:32]
        return SentImage(image.width, image.height, str(image.format), digest, data, before_text)


Script = Callable[[int, dict[str, Any]], Action | None]


def doc_ids_of(body: dict[str, Any]) -> list[str]:
    """The documents a request allows to be cited: those of the schema's enum, else those shown in the messages."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    enum = schema.get("properties", {}).get("ref_id", {}).get("items", {}).get("enum")
    if enum is not None:
        return list(enum)
    text = "\n".join(map(text_of, body["messages"]))
    return list(dict.fromkeys(re.findall(r"^\[ref_id=([^\]\n]+)\]", text, re.MULTILINE)))


def is_plan(body: dict[str, Any]) -> bool:
    """A plan is asked for by its schema, or without one and with no word of ref_id."""
    if "response_format" in body:
        return "queries" in json.dumps(body["response_format"])
    return not any("ref_id" in text_of(message) for message in body["messages"])


def default_text(body: dict[str, Any]) -> str:
    """The reply's text, a function of seed and messages alone."""
    canonical = json.dumps([body.get("seed"), body["messages"]], sort_keys=True)
    number = int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=4).digest(), "big")
    if is_plan(body):
        queries = [f"energy use of servers {number % 97}", f"power of data centers {number % 89}"]
        return json.dumps({"queries": queries})
    doc_ids = doc_ids_of(body)
    answer = {
        "explanation": f"hash {number}",
        "answer": f"It is {number % 7}.",
        "answer_value": str(number % 7),
        "answer_unit": "",
        "ref_id": [doc_ids[number % len(doc_ids)]] if doc_ids else [],
    }
    return json.dumps(answer)


def completion(text: str | None, *, finish_reason: str = "stop", cached_tokens: int = 0) -> dict[str, Any]:
    """A chat completion that holds the text."""
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason},
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": len((text or "").split()),
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        },
    }


class FakeOpenAI(LocalServer):
    """The server, as a context manager; requests are answered concurrently, connections kept alive."""

    def __init__(
        self,
        script: Script | None = None,
        models: list[str] | dict[str, int] | None = None,
        batches: FakeBatches | None = None,
    ) -> None:
        self.models, self.batches = models, batches
        if batches is not None:
            batches.answer = lambda body: completion(default_text(body))
        self._script = script or (lambda index, body: None)
        self.log: list[Received] = []
        super().__init__()

    @property
    def n_requests(self) -> int:
        with self.lock:
            return len(self.log)

    def list_models(self) -> Action:
        """Answer a GET of the models' list, which not every server has."""
        if self.models is None:
            return super().list_models()
        windows = self.models if isinstance(self.models, dict) else {}
        extras = {name: {"max_model_len": window} for name, window in windows.items()}
        listed = [{"id": name, "object": "model", **extras.get(name, {})} for name in self.models]
        return Action(body={"object": "list", "data": listed})

    def receive_get(self, path: str) -> Action:
        """Answer a GET: of the models' list, or of the batch API."""
        is_batch = self.batches is not None and path.startswith(("/v1/files", "/v1/batches"))
        return self.batches.get(path) if is_batch else super().receive_get(path)

    def receive(self, path: str, headers: dict[str, str], raw: bytes) -> Action:
        """Log one request and say what to do with it."""
        if self.batches is not None and path.startswith(("/v1/files", "/v1/batches")):
            return self.batches.post(path, headers, raw)
        body = json.loads(raw)
        with self.lock:
            received = Received(len(self.log), time.monotonic(), path, headers, body)
            self.log.append(received)
        if path.partition("?")[0] != "/v1/chat/completions":
            return Action(404, error_body(f"no such path: {path}"))
        action = self._script(received.index, body) or Action()
        if action.body is None and not action.reset:
            action = Action(**{**vars(action), "body": completion(default_text(body))})
        return action
