"""The ledger on disk: immutable Arrow segments whose names hold the digests of their bytes."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import pyarrow as pa

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.records import Reply
from kohaku_ray.run.lease import LeaseFile
from kohaku_ray.storage import TEMPORARY, Directory, checksum

FOLDER = "segments"

MOST_STARTS = 3
"""Starts of one shard in a row that its process does not survive, after which it refuses to read the segments."""

_WAY_OUT = "run on that cluster, wait for it to end, or set ledger.path to another directory"

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
        damaged: Names of segments whose bytes are not those that were written; they were left aside.
    """

    entries: dict[str, Entry]
    damaged: tuple[str, ...]


class SegmentStore:
    """Segments of one ledger directory, on any pyarrow filesystem."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._directory = Directory(path)
        self._lease = LeaseFile(self._directory, "ledger", _WAY_OUT)

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
            for row in [] if table is None else table.to_pylist():
                held = entries.get(row["key"])
                if mine(row["key"]) and (held is None or held.generation < row["generation"]):
                    entries[row["key"]] = _entry(row)
        return Loaded(entries, tuple(name for name, table in tables.items() if table is None))

    def write(self, entries: Iterable[tuple[str, Entry]]) -> str:
        """Write one segment and return its name.

        Raises:
            DataError: The disk is full or the directory cannot be written, or as ``segment_table``.
        """
        table = segment_table(entries).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        # Time first, so that names sort by age.
        name = f"{FOLDER}/{time.time_ns():020d}-{checksum(data)}.arrow"
        self._directory.replace(name, data)
        return name

    def compact(self, more_than: int = 64) -> int:
        """Merge all readable segments into one when there are many; returns how many were merged.

        The merged segment is written before the old ones go: a crash in between leaves repeats, which loading ignores.
        Files that a killed process had not finished go too: the caller holds the lease, so nobody else writes.
        """
        for name in self._directory.names(FOLDER):
            if name.endswith(TEMPORARY):
                self._directory.remove(name)
        tables = {name: table for name, table in self._tables().items() if table is not None}
        if len(tables) <= more_than:
            return 0
        self.write(self.load(lambda _: True).entries.items())
        for name in tables:
            self._directory.remove(name)
        return len(tables)

    @contextmanager
    def starting(self, shard: str, owner: str) -> Iterator[None]:
        """Record that a shard starts while the block runs, so that a process that the block kills is counted.

        Args:
            shard: Name of the shard in this ledger.
            owner: Name of its actor: Ray starts it again and again, whatever kills it.

        Raises:
            DataError: The same actor's processes died ``MOST_STARTS`` times in a row in this block.
        """
        name = f"starting-{shard}.json"
        n_died = self._n_died(name, owner)
        if n_died >= MOST_STARTS:
            raise DataError(
                f"shard {shard} of ledger {self.path} died {n_died} times in a row while it read {FOLDER}/: Ray's logs "
                "say why (out of memory is the usual reason); give its node more memory, or set ledger.path to another "
                "directory"
            )
        self._directory.replace(name, json.dumps({"owner": owner, "n_died": n_died + 1}).encode())
        try:
            yield
        except Exception:
            self._directory.remove(name)
            raise
        self._directory.remove(name)

    def _n_died(self, name: str, owner: str) -> int:
        try:
            before = json.loads(self._directory.read(name).to_pybytes())
            return int(before["n_died"]) if before["owner"] == owner else 0
        except StorageError:
            raise
        except (DataError, ValueError, TypeError, LookupError):
            return 0  # none

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
        """Return every segment by name, oldest first; None for a damaged one.

        Raises:
            StorageError: A segment cannot be read: its replies are not to be asked again.
        """
        found: dict[str, pa.Table | None] = {}
        for name in self._directory.names(FOLDER):
            if name.endswith(".arrow"):
                try:
                    found[name] = _table(name, self._directory.read(name))
                except StorageError:
                    raise
                except (DataError, pa.ArrowException, OSError):
                    found[name] = None
        return found


def segment_table(entries: Iterable[tuple[str, Entry]]) -> pa.Table:
    """Build a segment's table from entries.

    Raises:
        DataError: A table cannot hold an entry, such as a text with a lone surrogate or a count beyond int64.
    """
    try:
        rows = pa.array([_row(key, entry) for key, entry in entries], pa.struct(list(SEGMENT_SCHEMA)))
        return pa.Table.from_struct_array(rows)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"a reply cannot be recorded ({type(error).__name__}: {error}): its server must send text that UTF-8 can "
            "hold and counts that int64 can hold"
        ) from error


def _table(name: str, data: pa.Buffer) -> pa.Table | None:
    """Read a segment, if its name has the digest of its bytes: Arrow's reader trusts them, and dies of wrong ones."""
    if checksum(data) != name.removesuffix(".arrow").rpartition("-")[2]:
        return None
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    return table if table.schema == SEGMENT_SCHEMA else None  # of another version


def _row(key: str, entry: Entry) -> dict[str, object]:
    own = {"key": key, "model": entry.model, "call_s": entry.call_s, "generation": entry.generation}
    return own | asdict(entry.reply)


def _entry(row: dict[str, object]) -> Entry:
    fields = dict(row)
    fields.pop("key")
    own = {name: fields.pop(name) for name in ("model", "call_s", "generation")}
    return Entry(Reply(**fields), **own)  # type: ignore[arg-type]
