"""The ledger on disk: immutable Arrow segments, written under a temporary name and renamed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import pyarrow as pa

from kohaku_ray.engine.ledger.lease import LeaseFile
from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.records import Reply
from kohaku_ray.storage import Directory

FOLDER = "segments"

SEGMENT_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("model", pa.string()),
        ("text", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("replica", pa.string()),
        ("service_s", pa.float64()),
        ("gpu_s", pa.float64()),
        ("joules", pa.float64()),
        ("call_s", pa.float64()),
        ("generation", pa.int64()),
    ]
)


_EMPTY = SEGMENT_SCHEMA.empty_table()


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded reply.

    Attributes:
        reply: The model's reply.
        model: Identity of the model.
        call_s: Seconds from the call to its reply: the wait for a replica and its service time.
        generation: Number of earlier replies to the same call that it replaces.
    """

    reply: Reply
    model: str
    call_s: float
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The contents of a segment directory.

    Attributes:
        entries: Replies by key: the latest generation, and within a generation the first recorded.
        n_torn: Segments that could not be read and were ignored.
    """

    entries: dict[str, Entry]
    n_torn: int


class SegmentStore:
    """Segments of one ledger directory, on any pyarrow filesystem."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._directory = Directory(path)
        self._lease = LeaseFile(self._directory)

    def check_writable(self) -> None:
        """Write a file to an object store and delete it; a local path is checked by the shard that opens it.

        Raises:
            StorageError: It refuses, or does not answer.
        """
        if not self._directory.is_local:
            name = f"{uuid.uuid4().hex}.probe"
            self._directory.write(name, b"probe")
            self._directory.remove(name)

    def load(self, mine: Callable[[str], bool]) -> Loaded:
        """Read every segment, oldest first, and keep the keys for which ``mine`` holds."""
        entries: dict[str, Entry] = {}
        tables = self._tables()
        while any(table is None and self._directory.size(name) is None for name, table in tables.items()):
            tables = self._tables()  # merged by another process during reading
        for table in tables.values():
            for row in (table or _EMPTY).to_pylist():
                held = entries.get(row["key"])
                if mine(row["key"]) and (held is None or held.generation < row["generation"]):
                    entries[row["key"]] = _entry(row)
        n_torn = sum(table is None for table in tables.values())
        return Loaded(entries, n_torn)

    def write(self, entries: Iterable[tuple[str, Entry]]) -> str:
        """Write one segment and return its name.

        Raises:
            DataError: The disk is full or the directory cannot be written, or as ``segment_table``.
        """
        table = segment_table(entries)
        # Time first, so that names sort by age; a random part, so that two writers never choose one name.
        name = f"{FOLDER}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.arrow"
        self._directory.write_arrow(f"{name}.tmp", table)
        self._directory.rename(f"{name}.tmp", name)
        return name

    def compact(self, more_than: int = 64) -> int:
        """Merge all readable segments into one when there are many; returns how many were merged.

        The merged segment is written before the old ones go: a crash in between leaves repeats, which loading ignores.
        """
        tables = {name: table for name, table in self._tables().items() if table is not None}
        if len(tables) <= more_than:
            return 0
        self.write(self.load(lambda _: True).entries.items())
        for name in tables:
            self._directory.remove(name)
        return len(tables)

    def acquire_lease(self, owner: str) -> bool:
        """Take or renew the lease of this path; returns whether ``owner`` did not hold it before.

        Raises:
            DataError: Another live owner holds it, or is about to take it.
        """
        return self._lease.acquire(owner)

    def release_lease(self, owner: str) -> None:
        """Release the lease if ``owner`` holds it."""
        self._lease.release(owner)

    def _tables(self) -> dict[str, pa.Table | None]:
        """Return every segment by name, oldest first; None for a torn one.

        Raises:
            StorageError: A segment cannot be read: its replies are not to be asked again.
        """
        found: dict[str, pa.Table | None] = {}
        for name in self._directory.names():
            if name.startswith(f"{FOLDER}/") and name.endswith(".arrow"):
                try:
                    found[name] = _completed(self._directory.read_arrow(name))
                except StorageError:
                    raise
                except (DataError, KeyError):
                    found[name] = None
        return found


def segment_table(entries: Iterable[tuple[str, Entry]]) -> pa.Table:
    """Build a segment's table from entries.

    Raises:
        DataError: A table cannot hold an entry, such as a text with a lone surrogate or a count beyond int64.
    """
    try:
        return pa.Table.from_pylist([_row(key, entry) for key, entry in entries], schema=SEGMENT_SCHEMA)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"a reply cannot be recorded ({type(error).__name__}: {error}): its server must send text that UTF-8 can "
            "hold and counts that int64 can hold"
        ) from error


def _completed(table: pa.Table) -> pa.Table:
    """Add ``generation`` to a segment of a version that had no such column."""
    if "generation" not in table.column_names:
        table = table.append_column("generation", pa.repeat(pa.scalar(0, pa.int64()), len(table)))
    return table.select(SEGMENT_SCHEMA.names)


def _row(key: str, entry: Entry) -> dict[str, object]:
    own = {"key": key, "model": entry.model, "call_s": entry.call_s, "generation": entry.generation}
    return own | asdict(entry.reply)


def _entry(row: dict[str, object]) -> Entry:
    fields = dict(row)
    fields.pop("key")
    own = {name: fields.pop(name) for name in ("model", "call_s", "generation")}
    return Entry(Reply(**fields), **own)  # type: ignore[arg-type]
