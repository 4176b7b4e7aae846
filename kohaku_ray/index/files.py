"""Files of an index on any pyarrow filesystem: Arrow and Parquet in, Arrow and Parquet out, nothing pickled."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from kohaku_ray.errors import ConfigError, DataError, StorageError
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.identity import KEY_BYTES, Keys, no_keys
from kohaku_ray.storage import asking, below, open_filesystem, refusal

REINDEX = "re-index with `kohaku-ray index`"
"""The way out of most errors of an index."""


class Directory:
    """A directory on a local disk or an object store; names are relative to it."""

    def __init__(self, path: str) -> None:
        """Find the filesystem of a path or URI.

        Raises:
            ConfigError: pyarrow knows no such filesystem.
        """
        self.path = path
        try:
            self._filesystem, self._root = open_filesystem(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"{path!r} is on no filesystem pyarrow can open: {error}") from error

    @property
    def is_local(self) -> bool:
        """Whether files can be memory-mapped."""
        return isinstance(self._filesystem, pafs.LocalFileSystem)

    def full(self, name: str) -> str:
        """Path of a file as its filesystem takes it."""
        return f"{self._root.rstrip('/')}/{name}"

    def size(self, name: str) -> int | None:
        """Size in bytes; None when there is no such file."""
        with self._asking("cannot look at", name):
            info = self._filesystem.get_file_info(self.full(name))
        return int(info.size) if info.type == pafs.FileType.File else None

    def names(self, folder: str = "") -> list[str]:
        """List every file of a folder, however deep; of all without one."""
        root = self.full(folder) if folder else self._root
        selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
        with self._asking("cannot list"):
            infos = self._filesystem.get_file_info(selector)
        found = (info for info in infos if info.type == pafs.FileType.File)
        return sorted(info.path[len(self._root.rstrip("/")) + 1 :] for info in found)

    def read(self, name: str) -> pa.Buffer:
        """Read a whole file; a local one is memory-mapped.

        Raises:
            DataError: There is no such file.
            StorageError: It cannot be read.
        """
        try:
            with self._asking("cannot read", name):
                if self.is_local:
                    return pa.memory_map(self.full(name)).read_buffer()
                with self._filesystem.open_input_file(self.full(name)) as file:
                    return file.read_buffer()
        except FileNotFoundError as error:
            raise DataError(f"cannot read {self.full(name)}: {error}") from error
        except OSError as error:
            raise StorageError(f"cannot read {self.full(name)}: {error}") from error

    def write(self, name: str, data: Any) -> None:
        """Write bytes, or anything with a buffer.

        Raises:
            DataError: It cannot be written; the old file, if any, is unchanged.
        """
        with _Writing(self, name) as file:
            file.write(data)

    def write_parquet(self, name: str, table: pa.Table) -> None:
        """Write a table as Parquet with zstd; the same rows give the same bytes."""
        with _Writing(self, name) as file:
            pq.write_table(table.combine_chunks(), file, compression="zstd")

    def write_arrow(self, name: str, table: pa.Table) -> None:
        """Write a table as one uncompressed Arrow batch, so that a reader maps it without a copy."""
        with _Writing(self, name) as file, pa.ipc.new_file(file, table.schema) as writer:
            for batch in table.combine_chunks().to_batches():
                writer.write_batch(batch)

    def read_parquet(self, name: str) -> pa.Table:
        """Read a table that ``write_parquet`` wrote.

        Raises:
            DataError: It is truncated or not Parquet.
        """
        try:
            return pq.read_table(pa.BufferReader(self.read(name)))
        except (pa.ArrowException, OSError) as error:
            raise self.damaged(name, error) from error

    def read_arrow(self, name: str) -> pa.Table:
        """Map a table that ``write_arrow`` wrote.

        Raises:
            DataError: It is truncated or not an Arrow file.
        """
        try:
            return pa.ipc.open_file(pa.BufferReader(self.read(name))).read_all()
        except (pa.ArrowException, OSError) as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, reason: object) -> DataError:
        """Make the error for a file that exists but cannot be used."""
        return DataError(f"{self.full(name)} is damaged ({reason}): {REINDEX}")

    def rename(self, name: str, to: str) -> None:
        """Rename a finished file, over any file of that name.

        Raises:
            DataError: The filesystem refuses.
        """
        try:
            with self._asking("cannot rename", name):
                self._filesystem.move(self.full(name), self.full(to))
        except OSError as error:
            raise DataError(f"cannot rename {self.full(name)} to {to}: {error}") from error

    def remove(self, name: str) -> None:
        """Delete a file; a missing one is not an error."""
        if self.size(name) is not None:
            with self._asking("cannot delete", name):
                self._filesystem.delete_file(self.full(name))

    def open_output(self, name: str) -> Any:
        """Open a file for writing, creating its parent directories where files need them (not on S3)."""
        if not isinstance(self._filesystem, pafs.S3FileSystem):
            self._filesystem.create_dir(os.path.dirname(self.full(name)), recursive=True)
        return self._filesystem.open_output_stream(self.full(name))

    def refused(self, what: str, name: str, error: object) -> StorageError:
        """Make the error of a file on an object store."""
        return refusal(below(self.path, name), what, error)

    def _asking(self, what: str, name: str = "") -> AbstractContextManager[None]:
        return asking(below(self.path, name) if name else self.path, what)


class _Writing:
    """A file being written: an error of the filesystem names the file and the way out."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory, self._name = directory, name
        self._file: Any = None

    def __enter__(self) -> Any:
        try:
            self._file = self._directory.open_output(self._name)
        except OSError as error:
            raise self._refused(error) from error
        return self._file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._file.close()
        except OSError as closing:
            raise self._refused(closing) from closing
        if isinstance(error, OSError):
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> DataError:
        if not self._directory.is_local:
            return self._directory.refused("cannot write", self._name, error)
        return DataError(
            f"cannot write {self._directory.full(self._name)}: {error}: free space or choose a directory that can be "
            "written; the old index, if any, is unchanged"
        )


def matrix_column(vectors: npt.NDArray[np.float32]) -> pa.FixedSizeListArray:
    """Wrap a float32 matrix as an Arrow column of fixed-size lists, without a copy."""
    flat = np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def column_matrix(column: pa.ChunkedArray) -> F32:
    """View a column of fixed-size lists as a float32 matrix; one chunk is not copied."""
    d = column.type.list_size
    parts = [chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, d) for chunk in column.chunks]
    if len(parts) == 1:
        only: F32 = parts[0]
        return only
    return np.concatenate([np.empty((0, d), dtype=np.float32), *parts])


def column_keys(column: pa.ChunkedArray) -> Keys:
    """Copy a column of 16-byte strings as vector keys."""
    parts = [
        np.frombuffer(chunk.buffers()[1], f"V{KEY_BYTES}")[chunk.offset :][: len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([no_keys(), *parts])
