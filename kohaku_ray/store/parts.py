"""The parts of a run under way: a file per block of questions, written where its rows are made, joined at the end."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.records import digest
from kohaku_ray.store.storage import Directory, checksum, is_uri, join_path
from kohaku_ray.store.tables import SCHEMAS, Tables

FOLDER = "parts"
"""Folder of a run's directory that holds its parts until they are joined."""

_SUFFIX = ".part"
_WAY_OUT = "repeat the command, which makes it again from the ledger"


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run below its directory.

    A part is one file: a line with the checksum of the rest, a line with the block's counts as JSON, then an Arrow
    stream per table. It is written in one step, and bears the name of what decides its rows: a later start finds it.

    Attributes:
        path: Directory of the run.
        run: Name of all that decides the run's rows.
    """

    path: str
    run: str

    def name(self, question_ids: Sequence[str]) -> str:
        """Name the part of a block of questions."""
        return f"{self._stem}{digest(list(question_ids))}{_SUFFIX}"

    def write(self, question_ids: Sequence[str], tables: Tables, counts: Mapping[str, Any]) -> str:
        """Write a block's part, and return its name.

        Raises:
            DataError: It cannot be written.
        """
        name, body = self.name(question_ids), io.BytesIO()
        body.write(f"{json.dumps(counts)}\n".encode())
        for table, schema in SCHEMAS.items():
            with pa.ipc.new_stream(body, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
                writer.write_table(tables[table].combine_chunks())
        self._directory.replace(name, f"{checksum(body.getbuffer())}\n".encode() + body.getvalue())
        return name

    def read(self, name: str) -> Tables:
        """Read the tables of a part.

        Raises:
            DataError: It is not there, or not as it was written.
        """
        body = self._body(name)
        body.readline()
        return {table: pa.ipc.open_stream(body).read_all() for table in SCHEMAS}

    def find(self) -> tuple[dict[str, dict[str, Any]], list[DataError]]:
        """Find the parts that an earlier start left: their counts by name, and an error per part that is torn."""

        def read(name: str) -> dict[str, Any] | DataError:
            try:
                return dict(json.loads(self._body(name).readline()))
            except StorageError:
                raise
            except DataError as error:
                return error

        names = [name for name in self._directory.names() if name.startswith(self._stem) and name.endswith(_SUFFIX)]
        found = dict(zip(names, self._directory.map_items(read, names), strict=True))
        counts = {name: each for name, each in found.items() if not isinstance(each, DataError)}
        return counts, [each for each in found.values() if isinstance(each, DataError)]

    def remove_others(self) -> int:
        """Remove what other runs left here; returns the number of files."""
        others = [name for name in self._directory.names() if not name.startswith(self._stem)]
        self._directory.remove(*others)
        return len(others)

    def clear(self) -> None:
        """Remove all parts, this run's and others', and their folder."""
        Directory(self.path).clear(FOLDER)
        if not is_uri(self.path):
            with suppress(OSError):
                os.rmdir(join_path(self.path, FOLDER))

    @property
    def _stem(self) -> str:
        return f"{digest(self.run)}-"

    @property
    def _directory(self) -> Directory:
        return Directory(join_path(self.path, FOLDER), _WAY_OUT)

    def _body(self, name: str) -> io.BytesIO:
        """Read what stands behind the checksum, and compare it."""
        try:
            data = self._directory.read(name).to_pybytes()
        except StorageError:
            raise
        except DataError as error:
            raise DataError(f"{error}: {_WAY_OUT}") from error
        expected, _, body = data.partition(b"\n")
        if expected != checksum(body).encode():
            raise self._directory.damaged(name, "it is torn: its checksum is not the one it was written with")
        return io.BytesIO(body)


@dataclass(frozen=True, slots=True)
class JoinedParts:
    """The tables of parts, in the order of their names given here: one part is in memory at a time, each time anew."""

    parts: RunParts
    names: Sequence[str]

    def __iter__(self) -> Iterator[Tables]:
        """Read the parts one after the other; raises what ``RunParts.read`` does."""
        return map(self.parts.read, self.names)
