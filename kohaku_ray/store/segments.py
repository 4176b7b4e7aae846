"""The ledger on disk: replies of models in immutable Arrow segments, whose names hold the digests of their bytes."""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Literal

import pyarrow as pa

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.records import Reply
from kohaku_ray.store.lease import LeaseFile
from kohaku_ray.store.storage import TEMPORARY, Directory, checksum

FOLDER = "segments"

LARGE_BYTES = 16 * 2**20
"""A segment of so many bytes, some 40,000 replies, is not merged again."""

MOST_SMALL = 64
"""Small segments of one shard that are merged into one: by a flush every 2 s there would be 43,200 after a day."""

REMOTE_KEPT = 8
"""Segments of an object store kept in memory; local ones are mapped."""

LEASE_WAIT_S = 75.0
"""Longest wait for another process that holds a ledger: after a job that was killed, the actors of a cluster hold it
for a minute (``LedgerShard.ready``) and until their next look."""

MOST_STARTS = 3
"""Starts of one shard in a row that its process does not survive, after which it refuses to read the segments."""

_WAY_OUT = (
    "run on that cluster with the same code, wait for its job to end (a minute longer if it was killed), or set "
    "ledger.path to another directory, which makes all calls again"
)

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
        ("note", pa.string()),
        ("served_model", pa.string()),
        ("server", pa.string()),
    ]
)
_LATER = ("note", "served_model", "server")
"""Columns of text that segments of earlier versions lack, from one of them on: read as empty."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded reply of a model, by its identity.

    Attributes:
        call_s: Seconds from the call to its reply: the wait for a replica and its service time.
        generation: Number of earlier replies to the same call that it replaces.
    """

    reply: Reply
    model: str
    call_s: float
    generation: int = 0


ReplySource = Literal["ledger", "joined", "made"]
"""Where a reply comes from: recorded before; in flight, asked by another run or member; or a call of this run."""


@dataclass(frozen=True, slots=True)
class LedgerReply:
    """What the ledger gives for a request: the entry, where it comes from, and its key."""

    entry: Entry
    source: ReplySource
    key: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The contents of a segment directory.

    Attributes:
        entries: Replies by key: the latest generation, and within a generation the first recorded.
        damaged: Names of segments whose bytes are not those that were written; they were left aside.
    """

    entries: dict[str, Entry]
    damaged: tuple[str, ...]


class ReplyIndex(Mapping[str, Entry]):
    """Replies by key, as ``Loaded.entries``: the keys in memory, the replies in their segments.

    Attributes:
        damaged: As in ``Loaded``.
        unwritten: Entries that are in no segment yet.
    """

    def __init__(self, table_of: Callable[[str], pa.Table]) -> None:
        self.damaged: tuple[str, ...] = ()
        self._table_of = table_of
        self._segments: list[tuple[str, int]] = []  # each by its number: the file, and where in it its rows begin
        self._places: dict[str, int] = {}  # number of the segment << 32 | row: one small object per key
        self._generations: dict[str, int] = {}  # where it is not 0
        self.unwritten: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Entry:
        """Return an entry, or read it.

        Raises:
            DataError: Its segment is gone, or damaged since its keys were read.
        """
        if (entry := self.unwritten.get(key)) is not None:
            return entry
        number, row = divmod(self._places[key], 2**32)
        file, first = self._segments[number]
        try:
            table = self._table_of(file)
        except DataError:
            if self._segments[number] == (file, first):
                raise
            return self[key]  # its segment was merged in this moment
        return _entry({name: table.column(name)[first + row].as_py() for name in SEGMENT_SCHEMA.names})

    def __contains__(self, key: object) -> bool:
        return key in self._places or key in self.unwritten

    def __len__(self) -> int:
        return len(self._places.keys() | self.unwritten.keys()) if self.unwritten else len(self._places)

    def __iter__(self) -> Iterator[str]:
        yield from self._places
        yield from (key for key in self.unwritten if key not in self._places)

    def record(self, key: str, entry: Entry) -> None:
        """Take a reply, which the next flush writes: in another thread."""
        with self._lock:
            self.unwritten[key] = entry

    def add_segment(self, name: str, keys: Sequence[str | None], generations: Sequence[int]) -> None:
        """Take a segment's keys, by row (None: not wanted), unless known with the same or a later generation."""
        position = len(self._segments) << 32
        self._segments.append((name, 0))
        for key, generation in zip(keys, generations, strict=True):
            if key is not None and (key not in self._places or self._generations.get(key, 0) < generation):
                self._places[key] = position
                if generation:
                    self._generations[key] = generation
            position += 1

    def written(self, name: str, entries: Sequence[tuple[str, Entry]]) -> None:
        """Give up entries that are now the rows of a segment, unless they were replaced meanwhile."""
        self.add_segment(name, [key for key, _ in entries], [entry.generation for _, entry in entries])
        with self._lock:
            for key, entry in entries:
                if self.unwritten.get(key) is entry:
                    del self.unwritten[key]

    @property
    def files(self) -> list[str]:
        """Names of its segments, each after those that it replaces no reply of."""
        return list(dict.fromkeys(file for file, _ in self._segments))

    def merged(self, parts: Mapping[str, int], name: str) -> None:
        """Take a file in the place of its parts, each given with where in it its rows begin."""
        self._segments = [
            (name, parts[file] + first) if file in parts else (file, first) for file, first in self._segments
        ]


class _OpenTables:
    """Opens segments, and keeps the last ``most`` of them open (None: all)."""

    def __init__(self, read: Callable[[str], pa.Table], most: int | None) -> None:
        self._read, self._most = read, most
        self._open: OrderedDict[str, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> pa.Table:
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
                return self._open[name]
        table = self._read(name)  # others are opened meanwhile
        with self._lock:
            self._open[name] = table
            while self._most is not None and len(self._open) > self._most:
                self._open.popitem(last=False)
        return table

    def __contains__(self, name: object) -> bool:
        return name in self._open

    def forget(self, names: Iterable[str]) -> None:
        """Close some segments."""
        with self._lock:
            for name in names:
                self._open.pop(name, None)

    def cache_clear(self) -> None:
        """Close all segments."""
        with self._lock:
            self._open.clear()


class SegmentStore:
    """Segments of one ledger directory, on any pyarrow filesystem.

    Attributes:
        lost: That files went since it was read; empty: none did.
    """

    def __init__(self, path: str, shard: str = "") -> None:
        """Name a directory, and the shard whose keys are written and wanted, as ``3of16`` (default: any)."""
        self.path, self._shard, self.lost = path, shard, ""
        self._directory = Directory(path)
        self.lease = LeaseFile(self._directory, "ledger", _WAY_OUT)
        self.table_of = _OpenTables(self._open, None if self._directory.is_local else REMOTE_KEPT)

    @property
    def is_local(self) -> bool:
        """Whether a recorded reply is read without waiting for a network."""
        return self._directory.is_local

    def check_writable(self) -> None:
        """Write a file to an object store and delete it; a local path is checked by the shard that opens it.

        Raises:
            StorageError: It refuses, or does not answer.
        """
        if not self._directory.is_local:
            name = f"{uuid.uuid4().hex}.probe"
            self._directory.write(name, b"probe")
            self._directory.remove(name)

    def models(self) -> set[str]:
        """Return the identities of the models that have recorded replies."""
        try:
            tables = [table for _, table in self._tables(self._names()) if table is not None]
            return {model for table in tables for model in table["model"].unique().to_pylist()}
        finally:
            self.table_of.cache_clear()  # no file stays mapped

    def load(self, mine: Callable[[str], bool]) -> Loaded:
        """Read the replies of the keys for which ``mine`` holds; see ``index``."""
        try:
            while True:
                recorded = self.index(mine)
                try:
                    return Loaded(dict(recorded), recorded.damaged)
                except StorageError:
                    raise
                except DataError:
                    continue  # a segment was merged by another process, or damaged, during reading
        finally:
            self.table_of.cache_clear()  # no file stays mapped

    def index(self, mine: Callable[[str], bool]) -> ReplyIndex:
        """Read the keys of every segment but those of sibling shards, oldest first; keep those that are ``mine``.

        Raises:
            StorageError: A segment cannot be read: its replies are not to be asked again.
        """
        while True:
            recorded, damaged = ReplyIndex(self.table_of), []
            for name, table in self._tables(self.names()):
                if table is None:
                    damaged.append(name)
                    continue
                keys = [key if mine(key) else None for key in table.column("key").to_pylist()]
                recorded.add_segment(name, keys, table.column("generation").to_pylist())
            if all(self._directory.size(name) is not None for name in damaged):
                recorded.damaged, self.lost = tuple(damaged), ""
                return recorded
            # Else merged by another process during reading.

    def names(self) -> list[str]:
        """List the segments in which keys of this shard may be, oldest first."""
        return [name for name in self._names() if _share_keys(_shard(name), self._shard)]

    def write(self, entries: Iterable[tuple[str, Entry]]) -> str:
        """Write one segment and return its name.

        Raises:
            DataError: The disk is full or the directory cannot be written, or as ``segment_table``.
        """
        # Time first, so that names sort by age.
        return self._write_table(segment_table(entries), f"{time.time_ns():020d}", self._shard)

    def flush(self, recorded: ReplyIndex) -> int:
        """Write the replies held only in memory, and merge small segments; returns the number written.

        Raises:
            DataError: It cannot be written: the replies stay in memory. Or files that were read or written before are
                gone: what is in memory of their replies is written again, too.
        """
        sizes = self._directory.files(FOLDER)
        gone = [name for name in recorded.files if name not in sizes]
        held = [name for name in gone if name in self.table_of]
        for name in held:
            self._merge(recorded, [name])
        if gone:
            self.lost = (
                f"ledger {self.path} was deleted, moved or replaced while this job used it: {len(gone):,} files of "
                f"replies were gone, {len(held):,} are written there again, the calls of the others will be made "
                "again: repeat the command"
            )
        if entries := list(recorded.unwritten.items()):
            name = self.write(entries)
            recorded.written(name, entries)
            sizes[name] = 0
            if self.is_local:
                self.table_of(name)  # what is mapped outlasts its file
        if self.lost:
            raise StorageError(self.lost)
        small: list[str] = []  # after the last large one: what came first must stay first, so nothing passes that
        for name in recorded.files:
            if _shard(name) == self._shard:
                small = [] if sizes[name] >= LARGE_BYTES else [*small, name]
        if len(small) >= MOST_SMALL:
            with suppress(DataError):  # tried again after the next write
                self._merge(recorded, small[:MOST_SMALL])
        return len(entries)

    def _merge(self, recorded: ReplyIndex, names: Sequence[str]) -> None:
        """Write the rows of segments as one, and delete these.

        It is as old as the oldest: a reply that came first still does, also among segments that are not merged. A crash
        before the parts go leaves repeats, which reading ignores.
        """
        tables = list(map(self.table_of, names))
        age = names[0].removeprefix(f"{FOLDER}/").partition("-")[0]
        merged = self._write_table(pa.concat_tables(tables), age, _shard(names[0]))
        recorded.merged(dict(zip(names, accumulate(map(len, tables), initial=0), strict=False)), merged)
        self._directory.remove(*(name for name in names if name != merged))
        self.table_of.forget(names)  # those alone: to open one again hashes all of it
        if self.is_local:
            self.table_of(merged)

    def remove_unfinished(self) -> None:
        """Delete files that a killed process had not finished: the caller holds the lease, so nobody else writes."""
        self._directory.remove(*(name for name in self._directory.names(FOLDER) if name.endswith(TEMPORARY)))

    @contextmanager
    def starting(self, shard: str, owner: str) -> Iterator[None]:
        """Record that a shard starts while the block runs, so that a process that the block kills is counted.

        Args:
            shard: Name of the shard in this ledger.
            owner: Name of its actor: Ray starts it again and again, whatever kills it.

        Raises:
            DataError: The same actor's processes died ``MOST_STARTS`` times in a row in this block.
        """
        name, n_died = f"starting-{shard}.json", 0
        try:
            before = json.loads(self._directory.read(name).to_pybytes())
            n_died = int(before["n_died"]) if before["owner"] == owner else 0
        except StorageError:
            raise
        except (DataError, ValueError, TypeError, LookupError):
            pass  # there is none, or a torn one
        if n_died >= MOST_STARTS:
            raise StorageError(
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

    def _write_table(self, table: pa.Table, age: str, shard: str) -> str:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        data = sink.getvalue()
        name = f"{FOLDER}/{'-'.join(filter(None, (age, shard, checksum(data))))}.arrow"
        self._directory.replace(name, data)
        return name

    def _names(self) -> list[str]:
        """Names of the segments, oldest first."""
        return [name for name in self._directory.names(FOLDER) if name.endswith(".arrow")]

    def _tables(self, names: Iterable[str]) -> Iterator[tuple[str, pa.Table | None]]:
        """Read segments; None for a damaged one."""
        names = list(names)
        yield from zip(names, self._directory.map_items(self._read, names), strict=True)

    def _read(self, name: str) -> pa.Table | None:
        try:
            return self.table_of(name)
        except StorageError:
            raise
        except (DataError, pa.ArrowException, OSError):
            return None

    def _open(self, name: str) -> pa.Table:
        """Open a segment, if its name has the digest of its bytes: Arrow's reader trusts them, and dies of wrong ones.

        Raises:
            DataError: It has not, or is of another version, or is gone.
        """
        data = self._directory.read(name)
        if checksum(data) == name.removesuffix(".arrow").rpartition("-")[2]:
            table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
            for name in _LATER if table.schema.names == SEGMENT_SCHEMA.names[: len(table.schema)] else ():
                if name not in table.schema.names:
                    table = table.append_column(name, pa.array([""] * len(table), pa.string()))
            if table.schema == SEGMENT_SCHEMA:
                return table
        raise DataError(f"segment {name} of ledger {self.path} is damaged")


def ledger_damage(path: str, wanted: Collection[str]) -> list[DataError]:
    """Read a whole ledger: an error per damaged segment, and one if replies that are ``wanted`` are not there.

    Raises:
        StorageError: A segment cannot be read.
    """
    keys = set(wanted)
    loaded = SegmentStore(path).load(keys.__contains__)
    wrong = [f"segment {name} of ledger {path} is damaged: its calls will be asked again" for name in loaded.damaged]
    if missing := len(keys - loaded.entries.keys()):
        wrong.append(
            f"ledger {path} lacks {missing:,} of the {len(keys):,} replies that the run is made of: a segment is gone, "
            "or ledger.path is another; `kohaku-ray answer --again` would ask them again"
        )
    return list(map(DataError, wrong))


def _shard(name: str) -> str:
    """The shard that a segment is of, from its name; empty: of any."""
    return name.removesuffix(".arrow").partition("-")[2].rpartition("-")[0]


def _share_keys(first: str, second: str) -> bool:
    """Whether shards s of m and r of n may hold one key: if s and r agree modulo gcd(m, n) (see ``shard_of``)."""
    if not (first and second):
        return True
    (s, m), (r, n) = (map(int, shard.split("of")) for shard in (first, second))
    return (s - r) % math.gcd(m, n) == 0


def segment_table(entries: Iterable[tuple[str, Entry]]) -> pa.Table:
    """Build a segment's table from entries.

    Raises:
        DataError: A table cannot hold an entry, such as a text with a lone surrogate or a count beyond int64.
    """
    try:
        rows = pa.array([_row(key, entry) for key, entry in entries], pa.struct(list(SEGMENT_SCHEMA)))
        return pa.Table.from_struct_array(rows)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"a reply cannot be recorded ({type(error).__name__}: {error}): its server must send text that UTF-8 can "
            "hold and counts that int64 can hold"
        ) from error


_REPLY_FIELDS = tuple(field.name for field in fields(Reply))


def _row(key: str, entry: Entry) -> dict[str, object]:
    call = {"key": key, "model": entry.model, "call_s": entry.call_s, "generation": entry.generation}
    return call | {name: getattr(entry.reply, name) for name in _REPLY_FIELDS}


def _entry(row: dict[str, object]) -> Entry:
    call = {name: row[name] for name in ("model", "call_s", "generation")}
    return Entry(Reply(**{name: row[name] for name in _REPLY_FIELDS}), **call)  # type: ignore[arg-type]
