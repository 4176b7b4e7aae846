"""Files on local disks and object stores: opened, read, written in one step, refused with the way out.

A `Directory` reads and writes the many files of an index, a ledger or a run, with tables and checksums. ``read_file``,
``publish``, ``is_file`` and ``is_directory`` take one path that a user gave.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from kohaku_ray.errors import ConfigError, DataError, KohakuRayError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")
Result = TypeVar("Result")

ATTEMPTS = 8
"""Requests per operation on S3, the first one included: they wait longer each time, some 6 s in all."""

AT_ONCE = 8
"""Files of many that are read or deleted at once: on an object store each takes up to three requests."""

TEMPORARY = ".tmp"
"""Suffix of a file that is being written; one that stays is of a process that was killed."""

CONNECT_S, REQUEST_S = 5.0, 30.0
"""Seconds without a connection, and without a byte of an answer, after which a request to S3 has failed."""

_GOOGLE = ("gs://", "gcs://")

GCS_RETRY_S = 15
"""Seconds for which a request to Google Cloud Storage is repeated; its own default is 15 minutes."""

_CREDENTIALS = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|INVALID_TOKEN"
    r"|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN|HTTP status 40[13]|HTTP response code: 40[13]"
    r"|Could not find credentials|Could not create a OAuth2 access token",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|Bucket '.*' not found|bucket does not exist", re.IGNORECASE)


def is_uri(path: str) -> bool:
    """Return whether a path is a URI, such as ``s3://bucket/runs/a``, and no local path."""
    return "://" in path


def join_path(path: str, name: str) -> str:
    """Return the path of a file in a directory; a URI keeps its options (``?region=…``)."""
    if not is_uri(path):
        return f"{path}/{name}"
    uri, mark, options = path.partition("?")
    return f"{uri.rstrip('/')}/{quote(name)}{mark}{options}"


def without_options(path: str) -> str:
    """Return a path without the options of a URI."""
    return path.partition("?")[0] if is_uri(path) else path


def open_filesystem(path: str) -> tuple[Any, str]:
    """Find the filesystem of a path or URI, and the path as that filesystem takes it.

    On S3 a request that meets a time-out or a busy server is repeated (``ATTEMPTS``); credentials and end point come
    from the environment (``AWS_…``), or from the files and services that the AWS tools read.

    Raises:
        ConfigError: The URI holds credentials.
        OSError: The filesystem cannot be opened (pyarrow's own error).
        ValueError: pyarrow knows no such filesystem (``ArrowInvalid``).
    """
    import pyarrow.fs as fs

    if not is_uri(path):
        return fs.LocalFileSystem(), os.path.abspath(path)
    if "@" in urlsplit(path).netloc:
        scheme, _, rest = path.partition("://")
        raise ConfigError(
            f"{scheme}://…@{rest.partition('@')[2]} holds credentials, which config.yaml and messages would repeat: "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment instead"
        )
    if path.startswith(_GOOGLE) and "retry_limit_seconds=" not in path:
        path += f"{'&' if '?' in path else '?'}retry_limit_seconds={GCS_RETRY_S}"
    filesystem, inner = fs.FileSystem.from_uri(path)
    if isinstance(filesystem, fs.S3FileSystem):
        _, (options,) = filesystem.__reduce__()
        environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        filesystem = _patient(json.dumps([options, environment], sort_keys=True))
    return filesystem, inner


@functools.lru_cache(maxsize=16)
def _patient(key: str) -> Any:
    """Open S3 with the options of a URI, which cannot say how often and how long to try."""
    import pyarrow.fs as fs

    options, _ = json.loads(key)
    # What is empty or negative is not set.
    chosen = {name: value for name, value in options.items() if value not in ("", None, -1.0)}
    del chosen["proxy_options"]
    return fs.S3FileSystem(
        **chosen
        | {
            "connect_timeout": CONNECT_S,
            "request_timeout": REQUEST_S,
            "allow_delayed_open": True,  # a small file takes one request instead of three
            "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        }
    )


@contextmanager
def asking(path: str, what: str) -> Iterator[None]:
    """Turn a failure of a remote filesystem into an error with the way out.

    A missing file stays a ``FileNotFoundError``, and a failure of a local one stays as it is. ``what`` was tried, such
    as ``cannot read``.

    Raises:
        StorageError: The storage refused, or did not answer.
        DataError: The path has an empty part, as an object's key may (``docs//x.txt``): pyarrow opens none.
    """
    try:
        yield
    except FileNotFoundError as error:
        if is_uri(path) and _NO_BUCKET.search(str(error)):
            raise refusal(path, what, error) from error
        raise
    except OSError as error:
        if not is_uri(path):
            raise
        raise refusal(path, what, error) from error
    except ValueError as error:  # ArrowInvalid: arrow#40371
        if "Empty path component" not in str(error):
            raise
        raise DataError(
            f"{what} {without_options(path)}: two slashes enclose an empty part of its path: copy the object to a key "
            "without one"
        ) from None


_MISTAKES = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL),
        *(errno.EACCES, errno.EPERM, errno.EROFS),
    }
)
"""What a filesystem says of a path that was not well chosen; all else, such as a full disk, may pass."""


def write_error(message: str, error: OSError) -> DataError:
    """Make the error of a local file or directory that cannot be written: a ``StorageError`` where it may pass."""
    return DataError(message) if error.errno in _MISTAKES else StorageError(message)


def refusal(path: str, what: str, error: object) -> StorageError:
    """Make the error of a remote file, from what its storage said."""
    where, reason = without_options(path), str(error)
    bucket = f"bucket {urlsplit(path).netloc}"
    on_google = where.startswith(_GOOGLE)
    by_variable = not on_google and "endpoint_override=" not in path
    asked = by_variable and (os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))
    if _NO_BUCKET.search(reason):
        way_out = f"there is no {bucket}: create it, or correct the path"
    elif _CREDENTIALS.search(reason) and on_google:
        way_out = (
            f"{bucket} needs credentials: set GOOGLE_APPLICATION_CREDENTIALS to the file of an account that may list, "
            "read, write and delete there, for the driver and for every node of the cluster"
        )
    elif _CREDENTIALS.search(reason):
        way_out = (
            f"{bucket} refuses these credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
            "AWS_SESSION_TOKEN, where there is one) to a key that may list, read, write and delete there, for the "
            "driver and for every node of the cluster"
        )
    else:
        settings = "" if on_google else "AWS_ENDPOINT_URL, AWS_REGION and "
        way_out = (
            f"{bucket} did not answer{f' at {asked}' if asked else ''}: check {settings}the network, then repeat the "
            "command, which goes on where it stopped"
        )
    return StorageError(f"{what} {where}: {way_out} ({reason})")


def checksum(data: Any) -> str:
    """Digest a file's content, bytes or anything with a buffer: BLAKE2b, 32 hexadecimal characters."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _no_filesystem(path: str, error: Exception) -> ConfigError:
    return ConfigError(f"{path!r} is on no filesystem pyarrow can open: {error}")


class _Summed:
    """A file whose checksum is made as it is written."""

    def __init__(self, file: Any) -> None:
        self._file, self._digest = file, hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self._digest.update(data)
        written: int = self._file.write(data)
        return written

    def checksum(self) -> str:
        return self._digest.hexdigest()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Directory:
    """A directory on a local disk or an object store; names are relative to it."""

    def __init__(self, path: str, way_out: str = "") -> None:
        """Find the filesystem of a path or URI; ``way_out`` says what to do about a damaged file.

        Raises:
            ConfigError: pyarrow knows no such filesystem.
        """
        self.path, self._way_out = path, way_out
        try:
            self._filesystem, self._root = open_filesystem(path)
        except (ValueError, OSError) as error:
            raise _no_filesystem(path, error) from error

    @property
    def is_local(self) -> bool:
        """Whether files can be memory-mapped."""
        return bool(self._filesystem.type_name == "local")

    def full(self, name: str) -> str:
        """Path of a file as its filesystem takes it."""
        return f"{self._root.rstrip('/')}/{name}"

    def size(self, name: str) -> int | None:
        """Size in bytes; None when there is no such file."""
        with self._asking("cannot look at", name):
            info = self._filesystem.get_file_info(self.full(name))
        return int(info.size) if info.is_file else None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Sizes in bytes of those files that are there; on S3 a thousand of a folder by one request."""
        import pyarrow.fs as fs

        names = list(names)
        if self.is_local:
            return {name: size for name in names if (size := self.size(name)) is not None}
        listed: dict[str, int] = {}
        for folder in dict.fromkeys(os.path.dirname(name) for name in names):
            with self._asking("cannot list"):
                selector = fs.FileSelector(self.full(folder) if folder else self._root, allow_not_found=True)
                infos = self._filesystem.get_file_info(selector)
            listed |= {f"{folder}/{info.base_name}".lstrip("/"): info.size for info in infos if info.is_file}
        return {name: listed[name] for name in names if name in listed}

    def names(self, folder: str = "") -> list[str]:
        """List every file of a folder, however deep; of all without one."""
        return list(self.files(folder))

    def files(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the files that ``names`` lists, in bytes."""
        import pyarrow.fs as fs

        root = self.full(folder) if folder else self._root
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
        with self._asking("cannot list"):
            try:
                infos = self._filesystem.get_file_info(selector)
            except FileNotFoundError:  # made between Arrow's attempt to list it and its look whether it is there
                infos = self._filesystem.get_file_info(selector)
        files = {info.path[len(self._root.rstrip("/")) + 1 :]: info.size for info in infos if info.is_file}
        return dict(sorted(files.items()))

    def read(self, name: str, expected: str | None = None) -> pa.Buffer:
        """Read a whole file; a local one is memory-mapped, and ``expected`` is its checksum, where it is compared.

        Raises:
            DataError: There is no such file, or it has another checksum.
            StorageError: It cannot be read.
        """
        import pyarrow as pa

        try:
            with self._asking("cannot read", name):
                opened = pa.memory_map if self.is_local else self._filesystem.open_input_file
                with opened(self.full(name)) as file:
                    data = file.read_buffer()
        except OSError as error:
            kind = DataError if isinstance(error, FileNotFoundError | NotADirectoryError) else StorageError
            raise kind(f"cannot read {self.full(name)}: {error}") from error
        if expected is not None and checksum(data) != expected:
            raise self.damaged(name, "its checksum is not the one it was written with")
        return data

    def checksum(self, name: str) -> str | None:
        """Return the ``checksum`` of a file, read in pieces; None when there is no such file."""
        digest = hashlib.blake2b(digest_size=16)
        if self.size(name) is None:
            return None
        with self._asking("cannot read", name), self._filesystem.open_input_file(self.full(name)) as file:
            while block := file.read(2**20):
                digest.update(block)
        return digest.hexdigest()

    def write(self, name: str, data: Any) -> str:
        """Write bytes, or anything with a buffer; returns the file's checksum.

        Raises:
            DataError: It cannot be written; the old file, if any, is unchanged.
        """
        return self.write_by(name, lambda file: file.write(data))

    def write_by(self, name: str, write: Callable[[Any], object]) -> str:
        """Write a file by a function that takes it opened; returns the file's checksum. See ``write``."""
        with self._writing(name) as file:
            summed = _Summed(file)
            write(summed)
        return summed.checksum()

    def replace(self, name: str, data: Any) -> None:
        """Write a file in one step; a failure leaves the old file and no other."""
        if self._filesystem.type_name == "s3":  # where a file is there when all of it is
            self.write(name, data)
            return
        temporary = f"{name}.{uuid.uuid4().hex[:8]}{TEMPORARY}"
        try:
            with self._writing(temporary) as file:  # without its checksum, which takes longer than to write it
                file.write(data)
            self.rename(temporary, name)
        except BaseException:
            with suppress(KohakuRayError, OSError):
                self.remove(temporary)
            raise

    def replace_arrow(self, name: str, *tables: pa.Table) -> None:
        """Write tables as ``write_arrow`` does, by ``replace``: they are in memory once more meanwhile."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        _write_arrow(sink, tables)
        self.replace(name, sink.getvalue())

    def write_parquet(self, name: str, table: pa.Table) -> str:
        """Write a table as Parquet with zstd; the same rows give the same bytes. Returns the file's checksum."""
        import pyarrow.parquet as pq

        return self.write_by(name, lambda file: pq.write_table(table.combine_chunks(), file, compression="zstd"))

    def write_arrow(self, name: str, *tables: pa.Table) -> str:
        """Write tables of one schema as an uncompressed Arrow batch each, which a reader maps; returns the checksum."""
        return self.write_by(name, lambda file: _write_arrow(file, tables))

    def read_parquet(self, name: str, expected: str | None = None) -> pa.Table:
        """Read a table that ``write_parquet`` wrote; a ``DataError`` also says that it is truncated or no Parquet."""
        import pyarrow.parquet as pq

        # Not pq.read_table: it imports pyarrow.dataset, and that pandas, in a third of a second.
        table: pa.Table = self._read_table(name, expected, lambda file: pq.ParquetFile(file).read())
        return table

    def read_arrow(self, name: str, expected: str | None = None) -> pa.Table:
        """Map a table that ``write_arrow`` wrote; a ``DataError`` also says that it is truncated or no Arrow file."""
        import pyarrow as pa

        table: pa.Table = self._read_table(name, expected, lambda file: pa.ipc.open_file(file).read_all())
        return table

    def arrow_batches(self, name: str, choose: Callable[[pa.Schema], Iterable[int]]) -> list[pa.Table]:
        """Read the batches that are chosen by the file's schema, as their numbers, and of the file no more.

        Raises:
            DataError: See ``read_arrow``.
        """
        import pyarrow as pa

        def read(file: Any) -> list[pa.Table]:
            reader = pa.ipc.open_file(file)
            return [pa.Table.from_batches([reader.get_batch(number)]) for number in choose(reader.schema)]

        if self.is_local:
            local: list[pa.Table] = self._read_table(name, None, read)
            return local
        try:
            with self._asking("cannot read", name), self._filesystem.open_input_file(self.full(name)) as file:
                return read(file)
        except (pa.ArrowException, FileNotFoundError) as error:
            raise self.damaged(name, error) from error

    def _read_table(self, name: str, expected: str | None, parse: Callable[[Any], Any]) -> Any:
        import pyarrow as pa

        try:
            return parse(pa.BufferReader(self.read(name, expected)))
        except (pa.ArrowException, OSError) as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, reason: object) -> DataError:
        """Make the error for a file that exists but cannot be used."""
        return DataError(f"{self.full(name)} is damaged ({reason}){self._way_out and f': {self._way_out}'}")

    def rename(self, name: str, to: str) -> None:
        """Rename a finished file, over any file of that name; a ``DataError`` says that the filesystem refuses."""
        try:
            with self._asking("cannot rename", name):
                self._filesystem.move(self.full(name), self.full(to))
        except OSError as error:
            raise write_error(f"cannot rename {self.full(name)} to {to}: {error}", error) from error

    def remove(self, *names: str) -> None:
        """Delete files, several at once; a missing one is not an error."""

        def delete(name: str) -> None:
            with suppress(FileNotFoundError), self._asking("cannot delete", name):
                self._filesystem.delete_file(self.full(name))

        for _ in self.map_items(delete, names):
            pass

    def map_items(self, do: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Call a function for each item, ``AT_ONCE`` at a time; results in the items' order."""
        waiting = iter(items)
        some = list(islice(waiting, AT_ONCE))
        if len(some) < 2:  # no threads, which cannot be started any more when the process ends
            yield from map(do, some)
            return
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while some:  # no more results in memory than that
                yield from threads.map(do, some)
                some = list(islice(waiting, AT_ONCE))

    def clear(self, folder: str) -> None:
        """Delete every file of a folder, however deep; on S3 a thousand by one request."""
        with suppress(FileNotFoundError), self._asking("cannot delete", folder):
            self._filesystem.delete_dir_contents(self.full(folder), missing_dir_ok=True)

    def open_output(self, name: str) -> Any:
        """Open a file for writing, creating its parent directories where files need them (not on S3)."""
        if self._filesystem.type_name != "s3":
            self._filesystem.create_dir(os.path.dirname(self.full(name)), recursive=True)
        return self._filesystem.open_output_stream(self.full(name))

    @contextmanager
    def _writing(self, name: str) -> Iterator[Any]:
        """Open a file for writing; an error of the filesystem names the file and the way out."""
        try:
            with self.open_output(name) as file:
                yield file
        except OSError as error:
            if not self.is_local:
                raise refusal(join_path(self.path, name), "cannot write", error) from error
            raise write_error(
                f"cannot write {self.full(name)}: {error}: free space or choose a directory that can be written", error
            ) from error

    def _asking(self, what: str, name: str = "") -> AbstractContextManager[None]:
        return asking(join_path(self.path, name) if name else self.path, what)


def _write_arrow(file: Any, tables: Sequence[pa.Table]) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(file, tables[0].schema) as writer:
        for table in tables:
            for batch in table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]:
                writer.write_batch(batch)


_MAKE_TRIES = 100


def make_directory(path: str) -> None:
    """Make a directory for outputs, with those above it; a ``DataError`` says that it cannot be made."""
    for tries_left in reversed(range(_MAKE_TRIES)):
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            # The check of a run beside it, which leaves no empty directory, may remove one above it meanwhile.
            if not tries_left or not isinstance(error, FileNotFoundError):
                raise write_error(f"{path}: cannot be made ({error.strerror}): choose another output", error) from error
        else:
            return


def publish(path: str, data: bytes, way_out: str = "free the disk or choose another output") -> None:
    """Write the whole content of a file, given by path or URI, in one step.

    Raises:
        DataError: The file cannot be written; ``way_out`` says what to do.
    """
    publish_with(path, lambda temporary: Path(temporary).write_bytes(data), way_out)


def publish_with(path: str, write: Callable[[str], object], way_out: str) -> None:
    """Write a file in one step by a function that takes a temporary path; see ``publish``."""
    with publishing(path, way_out) as temporary:
        write(temporary)


@contextmanager
def publishing(path: str, way_out: str) -> Iterator[str]:
    """Give a temporary path, and make what the block writes there the file when it ends; see ``publish``."""
    if is_uri(path):  # written here first: on an object store a file is there when its upload is complete
        with tempfile.TemporaryDirectory() as folder:
            yield f"{folder}/file"
            data = Path(folder, "file").read_bytes()
        uri, mark, options = path.partition("?")
        parent, _, name = uri.rpartition("/")
        Directory(f"{parent}{mark}{options}").replace(unquote(name), data)
        return
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and os.path.isdir(path):
            way_out = "name a file in it"
        if isinstance(error, OSError):
            raise write_error(f"{path}: cannot be written ({error.strerror or error}): {way_out}.", error) from error
        raise


def read_file(path: str) -> bytes:
    """Read a whole file; an ``OSError`` is of a local one, a ``StorageError`` of a remote one."""
    if not is_uri(path):
        return Path(path).read_bytes()
    with asking(path, "cannot read"):
        filesystem, inner = open_filesystem(path)
        with filesystem.open_input_file(inner) as stream:
            return bytes(stream.read())


def is_file(path: str) -> bool:
    """Return whether there is such a file."""
    return _kind(path) == "File" if is_uri(path) else os.path.isfile(path)


def is_directory(path: str) -> bool:
    """Return whether there is such a directory; on an object store, whether a file is below it."""
    return _kind(path) == "Directory" if is_uri(path) else os.path.isdir(path)


def name_a_file(directory: str) -> DataError:
    """Return the error of a directory where a file is needed; it names the first file in it."""
    files = sorted(name for name in os.listdir(directory) if os.path.isfile(os.path.join(directory, name)))
    such = f", such as {os.path.join(directory, files[0])}" if files else ""
    return DataError(f"{directory} is a directory and no file: name a file{such}.")


def _kind(path: str) -> str:
    with asking(path, "cannot look at"):
        try:
            filesystem, inner = open_filesystem(path)
        except ValueError as error:
            raise _no_filesystem(path, error) from error
        kind: str = filesystem.get_file_info(inner).type.name
        return kind
