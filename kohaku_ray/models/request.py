"""The request to a model backend, its images as data URIs, and the length of its reply."""

from __future__ import annotations

import base64
import functools
import io
import math
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from kohaku_ray.errors import DataError, ModelError, UnfinishedReplyError
from kohaku_ray.records import CUT, WHOLE, Reply, digest
from kohaku_ray.store.storage import read_file
from kohaku_ray.values.read import clean_text

CACHED = 32
"""Images kept encoded per process: members of a question send the same ones."""


class PromptImage(NamedTuple):
    """An image of a prompt.

    Attributes:
        path: Path or URI of a PNG, named by the hash of its bytes.
        max_pixels: Most pixels that are sent; a larger image is scaled down.
    """

    path: str
    max_pixels: int

    @property
    def digest(self) -> str:
        """The hash of its bytes, from its name."""
        return posixpath.splitext(posixpath.basename(self.path.replace("\\", "/")))[0]


def fitting_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Scale a size down, in proportion, to at most ``max_pixels``; a smaller one stays."""
    if width * height <= max_pixels:
        return width, height
    scale = math.sqrt(max_pixels / (width * height))
    wide, high = max(int(width * scale), 1), max(int(height * scale), 1)
    return min(wide, max_pixels // high or 1), min(high, max_pixels)


def data_uris(images: Sequence[PromptImage]) -> list[str]:
    """Read, scale and encode images.

    Raises:
        ModelError: A file is missing or no image; the message names it.
    """
    return [_data_uri(image) for image in images]


@functools.lru_cache(maxsize=CACHED)
def _data_uri(image: PromptImage) -> str:
    from PIL import Image

    try:
        data = read_file(image.path)
    except (OSError, DataError) as error:
        raise ModelError(f"{image.path}, an image of the prompt, cannot be read ({error}): index again") from None
    try:
        with Image.open(io.BytesIO(data)) as opened:
            size = fitting_size(opened.width, opened.height, image.max_pixels)
            if size != opened.size:
                scaled = io.BytesIO()
                opened.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(scaled, "PNG")
                data = scaled.getvalue()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ModelError(f"{image.path} is no image that can be sent ({error}): index again") from None
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


def seed_for(base: int, question_id: str, member: int, attempt: int, role: str) -> int:
    """Derive the seed of one model call from the run's seed: in ``[0, 2**31)``, which every backend accepts."""
    return int(digest([base, question_id, member, attempt, role], 8), 16) % 2**31


PROMPT_CHARS = 8
"""Characters of a key that are the same for every call with one prompt."""


def request_key(request: ChatRequest) -> str:
    """Hash everything that decides a model call's reply: 32 hexadecimal characters.

    The first eight are those of the messages and images alone, so that calls with one prompt, as the members of a
    question make them, meet in one shard of the ledger (``shard_of``). ``session_id``, ``priority``, ``variables``,
    ``most_chars`` and ``adapter`` are left out: the first two are routing and order, the third is already in the
    messages, a reply that the fourth refuses is not recorded, and ``model`` names the fifth.

    Raises:
        UnstableError: Something in the request has no stable form: a set, an object, NaN, a key that is not text.
    """
    prompt = _prompt_digest(request.messages, tuple((image.digest, image.max_pixels) for image in request.images))
    sampling = {
        "temperature": float(request.temperature),
        "top_p": float(request.top_p),
        "max_tokens": request.max_tokens,
    }
    rest = {"model": request.model, "sampling": sampling, "seed": request.seed, "schema": request.schema}
    return prompt[:PROMPT_CHARS] + digest({"prompt": prompt, **rest}, 12, "request")


@functools.lru_cache(maxsize=64)
def _prompt_digest(messages: tuple[tuple[str, str], ...], images: tuple[tuple[str, int], ...]) -> str:
    """Hash a prompt; its calls come one after the other."""
    return digest([messages, images], 16, "request.messages")


def shard_of(key: str, n_shards: int) -> int:
    """Return the shard of the ledger that owns a key."""
    return int(key[:PROMPT_CHARS], 16) % n_shards


CHARS_PER_TOKEN = 4
"""Estimate for English text without a tokenizer."""


class Backend(Protocol):
    """A model; many requests may be in flight at once."""

    @property
    def identity(self) -> str:
        """Everything but the request that decides the replies, for ``ChatRequest.model``."""
        ...

    async def chat(self, request: ChatRequest) -> Reply:
        """Answer one request.

        Raises:
            ContextOverflowError: The prompt is longer than the model takes.
            TransientModelError: It failed temporarily, after the backend's own tries.
            ModelError: It failed for good.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call: everything that decides its reply, and five fields that do not.

    Attributes:
        model: Identity of the model in the ledger's keys.
        messages: ``(role, content)`` pairs in order.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus sampling.
        max_tokens: Longest reply, in tokens.
        seed: Sampling seed.
        schema: JSON schema of the reply; None: free text.
        session_id: Requests with equal ids go to one replica; not part of the key.
        variables: The prompt's variables and ``role``, for backends that do not read the prompt's text; not part of
            the key.
        images: Stand before the text of the last message; the key holds their hashes.
        most_chars: Longest reply that is recorded: a longer one is an error; None: any is. Not part of the key.
        adapter: Adapter of the deployment that answers; not part of the key, as ``model`` names it too.
        priority: Of the calls that wait for a replica, those of the lowest go first; not part of the key.
    """

    model: str
    messages: tuple[tuple[str, str], ...]
    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    schema: dict[str, Any] | None = None
    session_id: str = ""
    variables: Mapping[str, Any] | None = None
    images: tuple[PromptImage, ...] = ()
    most_chars: int | None = None
    adapter: str | None = None
    priority: int = 0

    @property
    def n_chars(self) -> int:
        """Count the characters of all messages."""
        return sum(len(content) for _, content in self.messages)

    @property
    def least_tokens(self) -> int:
        """Tokens that the prompt has by any tokenizer, and often half as many as by the model's own."""
        return self.n_chars // SURELY_CHARS_PER_TOKEN


SURELY_CHARS_PER_TOKEN = 8
"""No tokenizer packs prose so densely: a prompt has at least one token per this many characters."""


FINISH_REASONS = {
    **dict.fromkeys(("", "stop", "eos", "eos_token", "stop_sequence", "end_turn"), WHOLE),
    **dict.fromkeys(("length", "max_tokens", "model_length"), CUT),
}
"""What servers say of a reply that is whole, or cut at max_tokens; whatever else they say, the reply has failed.

eos: Together (openai-dotnet#267, vespa#33327); eos_token: TGI (text-generation-inference#2344, avante.nvim#706);
end_turn, stop_sequence and max_tokens: Anthropic behind gateways (bedrock-access-gateway#11, ellmer#3); model_length:
Mistral; nothing at all: older servers.
"""

FINISH_TRIES = 3
"""Tries of a call whose reply fails, each with a seed of its own: an engine's fault rarely meets three samples."""

_FILTERED = "content_filter"
"""Finish reason of a reply that a filter stopped (OpenAI, Azure): the same prompt is stopped again."""


def is_finished(reply: Reply) -> bool:
    """Whether a reply counts: whole or cut, and not without any token."""
    reason = FINISH_REASONS.get(reply.finish_reason.casefold())
    return reason == CUT or (reason == WHOLE and bool(reply.completion_tokens or reply.text.strip()))


def check_finished(reply: Reply, error: str = "") -> None:
    """Raise where a reply does not count, with the ``error`` that its server tells.

    Raises:
        UnfinishedReplyError: It failed, was stopped, or has no token.
        ModelError: A filter stopped it.
    """
    if is_finished(reply):
        return
    if reply.finish_reason == WHOLE:
        raise UnfinishedReplyError("the model generated no token")
    told = f": {clean_text(error)[:200]}" if error else ""
    said = f"the reply ended with finish_reason {reply.finish_reason[:60]!r}{told}"
    if reply.finish_reason == _FILTERED:
        raise ModelError(f"{said}: change the question or its documents, or serve another model")
    raise UnfinishedReplyError(said)


async def ask_until_finished(ask: Callable[[ChatRequest], Awaitable[Reply]], request: ChatRequest) -> Reply:
    """Ask up to ``FINISH_TRIES`` times while the reply fails, each time with another seed."""
    for tries in range(1, FINISH_TRIES):
        try:
            return await ask(with_other_seed(request, tries - 1))
        except UnfinishedReplyError:
            continue
    return await ask(with_other_seed(request, FINISH_TRIES - 1))


def with_other_seed(request: ChatRequest, n_failed: int) -> ChatRequest:
    """Return the request with the seed that follows so many failed replies."""
    return replace(request, seed=(request.seed + n_failed) % 2**31) if n_failed else request


def check_length(reply: Reply, most_chars: int | None) -> None:
    """Raise ``ModelError`` where a reply is longer than its request allows."""
    if most_chars is not None and len(reply.text) > most_chars:
        raise ModelError(f"the reply has {len(reply.text):,} characters, at most {most_chars:,} are taken")
