"""Vectors of queries, kept by the key of their text: a run that is made again encodes none of them again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32, KEY_BYTES, column_keys, column_matrix, matrix_column
from kohaku_ray.index.known import KnownVectors
from kohaku_ray.records import canonical_json
from kohaku_ray.store.storage import Directory, checksum

FOLDER = "queries"
"""Where they are, below a ledger's directory."""

WRITE_AFTER_S = 2.0
"""Seconds after which new vectors are in a file, as replies are: a process that is killed loses those of no more."""

MOST_FILES = 64
"""Files that are joined to one when they are read."""


class KeptQueries:
    """Vectors of the queries of one encoder, in files of a directory that several processes may write.

    What cannot be read or written is encoded again: nothing depends on it.
    """

    def __init__(self, path: str, identity: Mapping[str, Any]) -> None:
        """Read what is there of an encoder (``encoder_identity``) whose model may lie anywhere."""
        named = {key: value for key, value in identity.items() if key != "model"}
        secret = hashlib.blake2b(canonical_json(named, ascii_only=False).encode(), digest_size=32).digest()
        self._start = hashlib.blake2b(digest_size=KEY_BYTES, key=secret)
        self._directory, self._stem = Directory(path), f"{FOLDER}/{secret.hex()[:16]}-"
        self._lock = threading.Lock()
        self._new: dict[bytes, F32] = {}  # those of this process
        self._unwritten: list[bytes] = []
        self._timer: threading.Timer | None = None
        self._known = self._read()

    def __len__(self) -> int:
        """Count the vectors that were there."""
        return len(self._known)

    def encode(self, texts: Sequence[str], encode: Callable[[list[str]], Iterable[F32]]) -> list[F32]:
        """Return the vectors of texts; those that are not kept are encoded, and kept."""
        keys = [self._key(text) for text in texts]
        found = self._known.locate(np.array(keys, dtype=f"V{KEY_BYTES}"))
        vectors = np.empty((len(texts), found.dim), np.float32)
        places = np.flatnonzero(found.is_known)
        found.copy_to(vectors, places, places)
        known = {keys[place]: vectors[place] for place in places.tolist()}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in known and key not in self._new}
        if new:
            self._keep(dict(zip(new, encode(list(new.values())), strict=True)))
        return [known[key] if key in known else self._new[key] for key in keys]

    def write(self) -> None:
        """Write what is not yet in a file."""
        with self._lock:
            keys, self._unwritten, self._timer = self._unwritten, [], None
        if keys:
            self._write_file(keys, np.stack([self._new[key] for key in keys]))

    def _keep(self, vectors: Mapping[bytes, F32]) -> None:
        with self._lock:
            self._new |= {key: np.asarray(vector, np.float32) for key, vector in vectors.items()}
            self._unwritten += vectors
            if self._timer is None:
                self._timer = threading.Timer(WRITE_AFTER_S, self.write)
                self._timer.daemon = True
                self._timer.start()

    def _key(self, text: str) -> bytes:
        state = self._start.copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return state.digest()

    def _write_file(self, keys: Sequence[bytes], vectors: F32) -> bool:
        table = pa.table({"key": pa.array(keys, pa.binary(KEY_BYTES)), "vector": matrix_column(vectors)})
        name = checksum(b"".join(keys))
        try:
            self._directory.replace_arrow(f"{self._stem}{name}.arrow", table)
        except (DataError, OSError):
            return False
        return True

    def _read(self) -> KnownVectors:
        def read(name: str) -> pa.Table | None:
            try:
                return self._directory.read_arrow(name)
            except (DataError, OSError):
                return None  # torn, or joined with others by another process in this moment

        try:
            names = [name for name in self._directory.names(FOLDER) if name.startswith(self._stem)]
            names = [name for name in names if name.endswith(".arrow")]
            tables = [table for table in self._directory.map_items(read, names) if table is not None and len(table)]
        except (DataError, OSError):
            return KnownVectors()
        lengths = {table["vector"].type.list_size for table in tables}
        if len(lengths) > 1:  # not of one encoder, whatever their name says
            return KnownVectors()
        if len(tables) > MOST_FILES and self._write_file(*self._joined(tables)):
            self._directory.remove(*names)
            return self._read()
        parts = [KnownVectors.of(column_keys(table["key"]), column_matrix(table["vector"])) for table in tables]
        known = KnownVectors()
        for part in parts:
            known = known.behind(part)
        return known

    def _joined(self, tables: Sequence[pa.Table]) -> tuple[list[bytes], F32]:
        whole = pa.concat_tables(tables)
        first = {key: row for row, key in reversed(list(enumerate(whole["key"].to_pylist())))}
        return list(first), column_matrix(whole["vector"])[list(first.values())]
