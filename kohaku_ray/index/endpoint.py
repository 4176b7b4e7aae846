"""Encode texts by a server's ``/v1/embeddings``, and tell by a probe whether the model that made an index answers."""

from __future__ import annotations

import base64
import functools
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from kohaku_ray.errors import ConfigError, ContextOverflowError, DataError, IndexMismatchError, ModelError, StorageError
from kohaku_ray.index.arrays import F32, I32
from kohaku_ray.index.chunks import cut_near, without_header
from kohaku_ray.index.identity import encoder_identity, passage_part
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.index.store import read_manifest
from kohaku_ray.records import plain, pluralize
from kohaku_ray.store.storage import Directory

PROBE = "The data center's power usage effectiveness fell from 1.58 in 2018 to 1.09 in 2023."
"""The text whose vector tells one model from another behind the same name."""

PROBE_FILE = "probe.json"
"""File beside an index: what the endpoint was asked, and the probe's vector when its texts were encoded."""

SAME_COSINE = 0.999
"""Least cosine of a probe's two vectors by one model: a GPU's rounding changes them by far less."""

CHARS_PER_TOKEN = 4
"""Characters of a token, as ``batch_tokens`` counts them."""

T = TypeVar("T")


class Server(Protocol):
    """What sends requests to the encoder's server: ``models.endpoint.Endpoint``."""

    where: str

    async def post(self, path: str, fields: Mapping[str, Any], n_chars: int, read: Callable[[Any], T]) -> T:
        """Send a request until a reply can be read, or raise a ``ModelError``."""

    def gather(self, coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines together, from any thread; the first error ends the others."""


class EndpointEncoder:
    """Encodes texts by ``/v1/embeddings``, as ``SentenceEncoder`` does by a model of its own."""

    def __init__(
        self, settings: EndpointConfig, server: Server, index_path: str = "", *, context_header: bool = False
    ) -> None:
        """Take the server; nothing is sent before the first text.

        Args:
            settings: What the server is asked for.
            server: How it is asked.
            index_path: The index whose probe is compared before the first text. Default: none.
            context_header: Whether passages have a header (``index.context_header``).
        """
        self._settings, self._server, self._index_path = settings, server, index_path
        self._has_headers, self._dim = context_header, settings.dimensions
        self._checking, self._is_checked = threading.Lock(), not index_path

    def encode_passages(self, texts: Sequence[str], ids: Sequence[I32] | None = None) -> F32:
        """Encode indexed texts: each distinct one once; one refused for its length without header, or else in parts.

        Args:
            texts: The texts, without the prompt.
            ids: Not used: the server tokenises.

        Returns:
            Shape ``(n, d)``, unit rows, in the order given.

        Raises:
            ModelError: The server failed, or returned what are no vectors of these texts.
            IndexMismatchError: Another model answers than when the index was encoded.
        """
        return self._encode(texts, self._settings.passage_prompt, self._settings.batch_texts, self._has_headers)

    def encode_queries(self, texts: Sequence[str]) -> F32:
        """Encode queries, as ``encode_passages``, but one per request: a vector may depend on the others in a batch."""
        return self._encode(texts, self._settings.query_prompt, 1, False)

    def tokenises_as(self, tokenise: object) -> bool:
        """Whether ``encode_passages`` takes ids: never."""
        return False

    def images(self) -> Any:
        """Raise: it encodes no images."""
        raise ConfigError(
            f"index.image_vectors asks for vectors of images but the endpoint of {self._settings.model} encodes text "
            "alone: name a model that reads images as index.image_encoder, or set index.image_vectors to caption"
        )

    def check(self, *, writes: bool = False) -> None:
        """Ask for the probe's vector and compare it with that of the index; with ``writes``, note it if there is none.

        Before it is noted, the probe is also encoded among other texts, in batches and in flight as an index job's are:
        llama.cpp with several slots gives such a text another vector (ggml-org/llama.cpp#26282).

        Raises:
            IndexMismatchError: Another model answers to the name; the message says both vectors.
            ModelError: The server failed, or mixes texts that it encodes together.
        """
        [[vector]] = self._server.gather([self._vectors([PROBE], "", False)])
        directory = Directory(self._index_path)
        asked = plain(passage_part(encoder_identity(self._settings)))
        before = self._noted_vector(directory, asked)
        if before is None:
            if writes:
                self._check_batches(vector)
                text = json.dumps({"asked": asked, "text": PROBE, "vector": vector.tolist()})
                directory.replace(PROBE_FILE, text.encode())
            return
        cosine = float(before @ vector) if len(before) == len(vector) else 0.0
        if cosine < SAME_COSINE:
            raise IndexMismatchError(
                f"index.encoder: {self._server.where} is not the model that encoded {self._index_path}: the vector "
                f"of a probe text is {_shown(vector)} now, it was {_shown(before)} (cosine {cosine:.3f}): serve that "
                "model again, or set index.encoder.identity to a name for the new one and index again"
            )

    def _noted_vector(self, directory: Directory, asked: Any) -> F32 | None:
        """Read the probe's vector as noted for ``asked``; None: nothing there was encoded so."""
        try:
            noted = json.loads(directory.read(PROBE_FILE).to_pybytes())
            if noted["asked"] == asked:
                return np.array(noted["vector"], np.float32)
        except StorageError:
            raise
        except (DataError, ValueError, LookupError, TypeError):
            pass
        try:
            encoder = read_manifest(directory)["settings"]["encoder"]
        except StorageError:
            raise
        except DataError:
            return None
        if plain(passage_part(encoder)) == asked:
            raise IndexMismatchError(
                f"index.encoder: the vectors of {directory.path} are by {self._server.where}, and {PROBE_FILE} "
                "there, which tells one model from another, is missing or damaged: copy it from where the index was "
                "made, or set index.encoder.identity to a new name and index again"
            )
        return None

    def _check_batches(self, alone: F32) -> None:
        """Raise unless the probe has its vector also among other texts, shorter ones and itself, and these another."""
        texts = [text for n in range(1, 9) for text in (PROBE, PROBE, PROBE[: 8 * n])]
        batches = divide_texts(texts, self._settings.batch_texts, self._settings.batch_tokens * CHARS_PER_TOKEN, len)
        vectors = np.concatenate(self._server.gather(self._vectors(batch, "", False) for batch in batches))
        others = [vectors[position] for position, text in enumerate(texts) if text != PROBE]
        if (cosine := min(float(alone @ other) for other in others)) > SAME_COSINE:
            raise ModelError(
                f"index.encoder: {self._server.where} gives different texts one vector: {PROBE!r} and its first "
                f"words have {_shown(alone)} (cosine {cosine:.4f}): serve an embedding model, with its own pooling"
            )
        beside = min((vectors[position] for position, text in enumerate(texts) if text == PROBE), key=alone.dot)
        if (cosine := float(alone @ beside)) < SAME_COSINE:
            raise ModelError(
                f"index.encoder: {self._server.where} mixes texts that it encodes together: the vector of a probe "
                f"text is {_shown(alone)} alone and {_shown(beside)} among others (cosine {cosine:.3f}): start "
                "llama.cpp's server with -np 1; with another server, set index.encoder.batch_texts and max_ongoing to 1"
            )

    def _encode(self, texts: Sequence[str], prompt: str, most: int, has_headers: bool) -> F32:
        with self._checking:
            if not self._is_checked:
                self.check()
                self._is_checked = True
        row_of = {text: position for position, text in enumerate(dict.fromkeys(texts))}
        if not row_of:
            return np.empty((0, self._dim or 0), np.float32)
        most_chars = self._settings.batch_tokens * CHARS_PER_TOKEN
        batches = divide_texts(row_of, most, most_chars, lambda text: len(prompt) + len(text))
        vectors = np.concatenate(self._server.gather(self._vectors(batch, prompt, has_headers) for batch in batches))
        return vectors[[row_of[text] for text in texts]]

    async def _vectors(self, texts: list[str], prompt: str, has_headers: bool) -> F32:
        """Encode a batch, in halves if it is too large for the server; of one text, the mean of its halves' vectors."""
        encode = functools.partial(self._vectors, prompt=prompt, has_headers=has_headers)
        fields: dict[str, Any] = {"model": self._settings.model, "input": [prompt + text for text in texts]}
        if self._settings.dimensions is not None:
            fields["dimensions"] = self._settings.dimensions
        n_chars = sum(map(len, fields["input"]))
        try:
            return await self._server.post("embeddings", fields, n_chars, functools.partial(self._read, texts))
        except ContextOverflowError:
            if len(texts) == 1 and len(texts[0]) < 2:
                raise
        # One after the other: a server that refuses every length is asked a few times, not once per character.
        if len(texts) > 1:
            half = len(texts) // 2
            return np.concatenate([await encode(texts[:half]), await encode(texts[half:])])
        if has_headers and (body := without_header(texts[0])) != texts[0]:
            return await encode([body])
        parts = cut_near(texts[0], len(texts[0]) // 2)
        vectors = np.concatenate([await encode([part]) for part in parts])
        return unit_rows(np.array([list(map(len, parts))], np.float64) @ vectors.astype(np.float64))

    def _read(self, texts: list[str], body: Any) -> F32:
        """Read the vectors of a reply, by their ``index``."""
        where = f"index.encoder: {self._server.where}"
        data = body.get("data") if isinstance(body, dict) else None
        if not isinstance(data, list):
            raise ModelError(f"{where} returned no list of vectors: is this an embeddings endpoint (base_url)?")
        try:
            numbers = [entry.get("index", position) for position, entry in enumerate(data)]
            rows = {number: _numbers(entry["embedding"]) for number, entry in zip(numbers, data, strict=True)}
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            raise ModelError(f"{where} returned what is no vector ({error}): serve an embedding model") from None
        if len(data) != len(texts):
            raise ModelError(
                f"{where} returned {pluralize(len(data), 'vector')} for {pluralize(len(texts), 'text')}: "
                f"lower index.encoder.batch_texts (now "
                f"{self._settings.batch_texts}) if the server takes fewer at once"
            )
        if rows.keys() != set(range(len(texts))):
            raise ModelError(
                f"{where} numbered {len(data)} vectors {', '.join(map(repr, numbers[:5]))} in place of 0 to "
                f"{len(texts) - 1}: set index.encoder.batch_texts to 1, or serve the model with another server"
            )
        for position, text in enumerate(texts):
            dim = len(rows[position])
            self._dim = self._dim or dim
            if dim != self._dim:
                asked = self._settings.dimensions is not None
                way_out = "leave index.encoder.dimensions out" if asked else "one model must answer to the name"
                before = "were asked for" if asked else "had the vectors before"
                raise ModelError(f"{where} returned a vector of {dim} dimensions but {self._dim} {before}: {way_out}")
            if not np.isfinite(rows[position]).all() or not rows[position].any():
                is_nan, is_infinite = np.isnan(rows[position]).any(), np.isinf(rows[position]).any()
                fault = "NaN" if is_nan else "infinite numbers" if is_infinite else "zeros"
                raise ModelError(
                    f"{where} returned a vector of {fault} for {text[:80]!r}: the model's number format "
                    "may be too narrow (float16), or the server has a bug"
                )
        return unit_rows(np.stack([rows[position] for position in range(len(texts))]))


def divide_texts(texts: Iterable[str], most: int, most_chars: int, count: Callable[[str], int]) -> Iterator[list[str]]:
    """Divide texts, in their order, into requests."""
    batch, n_chars = list[str](), 0
    for text in texts:
        text_chars = count(text)
        if batch and (len(batch) == most or n_chars + text_chars > most_chars):
            yield batch
            batch, n_chars = [], 0
        batch.append(text)
        n_chars += text_chars
    if batch:
        yield batch


def _numbers(embedding: Any) -> F32:
    """Read a vector: a list of numbers, or base64 of little-endian float32."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float32)
    vector = np.array(embedding, np.float32)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"a list of shape {vector.shape}")
    return vector


def _shown(vector: F32) -> str:
    first = ", ".join(f"{number:.3f}" for number in vector[:3])
    return f"[{first}, …] of {len(vector)} dimensions"
