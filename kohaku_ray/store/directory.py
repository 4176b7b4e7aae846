"""A run's directory: what an answer job writes, and how to read it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kohaku_ray.errors import DataError
from kohaku_ray.store.lease import LeaseFile, Tell
from kohaku_ray.store.storage import (
    Directory,
    checksum,
    is_directory,
    is_file,
    is_uri,
    join_path,
    make_directory,
    publish,
    publishing,
    read_file,
)
from kohaku_ray.store.tables import ANSWER_FILES, LATER_COLUMNS, SCHEMAS, Tables, TableWriter
from kohaku_ray.version import code_version

SCORES = "scores.json"
"""File of a run with what its page says of its score: ``scores``, each ``metric``, ``score``, ``low``, ``high``."""

_ROWS_AT_ONCE = 4096
"""Rows of a table that are read together: some megabytes of the trace, which has the longest."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run's directory records of its configuration.

    Attributes:
        config: The whole configuration as YAML, secrets as references.
        facts: What pages show of it, so that they need not import its system.
        settings: What it sets otherwise than the defaults: value by dotted key.
        outputs: Names of the files that its system writes besides.
    """

    config: str
    facts: Mapping[str, Any]
    settings: Mapping[str, str]
    outputs: Sequence[str]


class RunDirectory:
    """The outputs of one answer job."""

    def __init__(self, path: str) -> None:
        self.path = path if is_uri(path) else os.path.abspath(path)

    @functools.cached_property
    def _directory(self) -> Directory:
        return Directory(self.path)

    def file(self, name: str) -> str:
        """Path of one of its files."""
        return join_path(self.path, name)

    def checked_file(self, name: str) -> str:
        """Path of one of a finished run's files, which is compared with its checksum.

        Raises:
            DataError: It is another than the run wrote.
        """
        expected = self.facts().get("checksums", {}).get(name)  # of some versions, a run had none
        if expected is not None and self._directory.checksum(name) != expected:
            raise self._damaged(name)
        return self.file(name)

    def check_writable(self, tell: Tell = None) -> None:
        """Check that the directory takes files, and that no live job writes it; nothing is left there or touched.

        ``tell`` says that it takes a while to know.
        """
        made, path = list[str](), self.path
        while not is_uri(path) and not os.path.lexists(path):
            made.append(path)
            path = os.path.dirname(path)
        self._make()
        probe = f"{uuid.uuid4().hex[:8]}.tmp"
        publish(self.file(probe), b"probe", _WAY_OUT)
        self._directory.remove(probe)
        self._lease().check_free(tell=tell)
        for path in made:
            with suppress(OSError):
                os.rmdir(path)

    @contextmanager
    def own(self) -> Iterator[Callable[[], None]]:
        """Make the directory, and keep other jobs from writing it while the block runs; see ``LeaseFile.hold``."""
        self._make()
        with self._lease().hold() as check:
            yield check

    def _make(self) -> None:
        if not is_uri(self.path):
            make_directory(self.path)

    def _lease(self) -> LeaseFile:
        return LeaseFile(self._directory, "run", "wait for it to end, or set run to another directory")

    def paid(self, identity: str | None = None) -> dict[str, float]:
        """Return what the starts so far of the run of this identity (default: any) paid, but for those killed."""
        facts = self.facts()
        try:
            return dict(facts.get("paid", {})) if identity in (None, facts.get("identity")) else {}
        except (ValueError, TypeError):
            return {}

    def facts(self) -> dict[str, Any]:
        """Read ``run.json``; nothing where it is missing or damaged."""
        try:
            facts = json.loads(self._read("run.json") or "{}")
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}

    def begin(self, record: RunRecord, identity: str = "", paid: Mapping[str, float] | None = None) -> None:
        """Record that a run has started, with what its earlier starts paid.

        The last step before work, after every check has passed.
        """
        if self._read("config.yaml") not in (None, record.config):
            # Another configuration's outputs must not be taken for this run's.
            tables = (f"{table}.parquet" for table in SCHEMAS)
            outputs = (*record.outputs, *self._own_outputs())
            self._directory.remove(*tables, *ANSWER_FILES, "report.html", SCORES, *outputs)
        earlier = {"identity": identity, "paid": paid} if paid else {}
        # First of all files: it marks a run's directory (``sources.check_places``).
        facts = {"status": "running", **earlier, **record.facts, "settings": record.settings}
        self.write_text("run.json", json.dumps(facts, indent=2))
        self.write_text("config.yaml", record.config)

    def finish(self, record: RunRecord, summary: Any, identity: str, parsing: str = "") -> None:
        """Record that the run is finished: its counts (a dataclass), its system's facts, and its files' checksums.

        ``identity`` is the digest of all that decides its outputs (``identity_of``), ``parsing`` its index's
        ``parsing_digest``.
        """
        versions = {"kohaku_ray": code_version(), "ray": version("ray"), "python": platform.python_version()}
        names = ["config.yaml", *(f"{name}.parquet" for name in SCHEMAS), *ANSWER_FILES, *record.outputs]
        facts = {
            "status": "finished",
            **asdict(summary),
            **record.facts,
            "settings": record.settings,
            "identity": identity,
            "versions": versions | ({"parsing": parsing} if parsing else {}),
            "checksums": {name: digest for name in names if (digest := self._directory.checksum(name))},
        }
        self.write_text("run.json", json.dumps({**facts, "checksum": facts_checksum(facts)}, indent=2))

    def damage(self) -> list[DataError]:
        """Compare the files of a finished run with their checksums: an error per file that is missing or another.

        Its page, which can be written again at any time, is asked for by ``page_damage``.
        """
        if not is_file(self.file("run.json")):
            return []
        try:
            facts = json.loads(self._read("run.json") or "")
            if facts["status"] == "running":
                return []
        except (ValueError, KeyError, TypeError, AttributeError):
            return [self._damaged("run.json")]
        if not is_whole(facts):
            return [self._damaged("run.json")]
        listed = facts["checksums"].items()
        return [self._damaged(name) for name, expected in listed if self._directory.checksum(name) != expected]

    def page_damage(self) -> list[DataError]:
        """Compare the run's page, where there is one, with its own seal, which those of older versions lack."""
        page = self.file("report.html")
        if is_file(page) and not is_sealed(read_file(page)):
            return [DataError(f"{page} is not what was written: repeat `kohaku-ray report {self.path}`")]
        return []

    def _damaged(self, name: str) -> DataError:
        return DataError(
            f"{self.file(name)} is not what the run wrote: repeat `kohaku-ray answer --again`, which takes the replies "
            "from the ledger"
        )

    def _own_outputs(self) -> list[str]:
        """Return the files that the previous run's system wrote, as listed in its ``run.json``."""
        try:
            names = json.loads(self._read("run.json") or "{}").get("outputs", [])
            return [os.path.basename(name) for name in names if os.path.basename(name)]
        except (AttributeError, TypeError, ValueError):
            return []

    def _read(self, name: str) -> str | None:
        try:
            return read_file(self.file(name)).decode()
        except FileNotFoundError:
            return None

    def write_text(self, name: str, text: str) -> None:
        """Write a small file in one step."""
        self._make()
        publish(self.file(name), text.encode(), _WAY_OUT)

    @contextmanager
    def writing(self, name: str) -> Iterator[TextIO]:
        """Write a file of text in one step, as the block ends; what is no Unicode becomes ``?``."""
        with (
            publishing(self.file(name), _WAY_OUT) as temporary,
            open(temporary, "x", encoding="utf-8", errors="replace", newline="") as file,
        ):
            yield file

    def write_tables(self, blocks: Iterable[Tables]) -> None:
        """Write each table in one step, without anything that differs between repeats; one block after the other."""
        self._make()
        with ExitStack() as files:
            writers = {}
            for name, schema in SCHEMAS.items():
                temporary = files.enter_context(publishing(self.file(f"{name}.parquet"), _WAY_OUT))
                writers[name] = files.enter_context(TableWriter(temporary, schema))
            for tables in blocks:
                for name, writer in writers.items():
                    writer.add(tables[name])

    def read_table(
        self, name: str, columns: Sequence[str] | None = None, filters: pc.Expression | None = None
    ) -> pa.Table:
        """Read one of ``SCHEMAS``, by default all columns and rows.

        Raises:
            DataError: The run has none (yet), or it is damaged or of another version.
        """
        wanted = SCHEMAS[name].names if columns is None else list(columns)
        with self._opened(name, wanted) as (where, there):
            table = pq.read_table(where, columns=there, filters=filters)
        for field in (SCHEMAS[name].field(column) for column in wanted if column not in there):
            table = table.append_column(field, pa.nulls(len(table), field.type))
        return table.select(wanted)

    def stream_table(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read one of ``SCHEMAS`` a few thousand rows at a time; raises what ``read_table`` does."""
        wanted = SCHEMAS[name].names if columns is None else list(columns)
        with self._opened(name, wanted) as (where, there), pq.ParquetFile(where, buffer_size=2**20) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=there):
                for field in (SCHEMAS[name].field(column) for column in wanted if column not in there):
                    batch = batch.append_column(field, pa.nulls(len(batch), field.type))
                yield batch.select(wanted)

    def check_tables(self) -> None:
        """Check that every one of ``SCHEMAS`` is there with all its columns, else ``DataError``."""
        for name, schema in SCHEMAS.items():
            with self._opened(name, schema.names):
                pass

    @contextmanager
    def _opened(self, name: str, wanted: Sequence[str]) -> Iterator[tuple[Any, list[str]]]:
        """Open one of ``SCHEMAS`` that has the wanted columns, or all but ``LATER_COLUMNS``.

        Yields the file and the columns that it has; what the block reads is refused with the way out.
        """
        file = self.file(f"{name}.parquet")
        try:
            where = pa.BufferReader(read_file(file)) if is_uri(file) else file
            have = pq.read_schema(where).names
            lacking = [column for column in wanted if column not in have and column not in LATER_COLUMNS]
            if lacking:
                raise DataError(
                    f"{file}: has no column {', '.join(lacking)}; its columns are {', '.join(have)}: it is of another "
                    "version, repeat `kohaku-ray answer`"
                )
            yield where, [column for column in wanted if column in have]
        except FileNotFoundError:
            raise DataError(
                f"{self.path} holds no {name}.parquet: the run has not finished or is of another version (repeat "
                "`kohaku-ray answer`), or this is no run's directory"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file} cannot be read ({error}): repeat `kohaku-ray answer`") from None

    def rows_in_error(self) -> frozenset[tuple[str, int]]:
        """Return (question_id, member or ``SHARED``) of answers and steps with an error; none of an unfinished run."""
        in_error: set[tuple[str, int]] = set()
        for name in ("answers", "trace"):
            if is_file(self.file(f"{name}.parquet")):
                rows = self.read_table(
                    name, columns=["question_id", "member", "error"], filters=~pc.field("error").is_null()
                )
                in_error |= set(zip(rows["question_id"].to_pylist(), rows["member"].to_pylist(), strict=True))
        return frozenset(in_error)


def is_whole(facts: Mapping[str, Any]) -> bool:
    """Return whether the facts of a finished run have their own checksum."""
    return facts.get("checksum") == facts_checksum(facts)


def facts_checksum(facts: Mapping[str, Any]) -> str:
    """Digest a run's facts, its checksum left out."""
    digested = {name: value for name, value in facts.items() if name != "checksum"}
    return checksum(json.dumps(json.loads(json.dumps(digested)), sort_keys=True).encode())


_WAY_OUT = "free the disk or its rights, or set run to another directory; model replies are safe in the ledger"


_SEAL = b"<!-- sha256 "


def seal_page(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """End a page with the digest of what comes before, since it may be written again long after its run."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    yield _SEAL + digest.hexdigest().encode() + b" -->\n"


def is_sealed(page: bytes) -> bool:
    """Return whether a page is as ``seal_page`` made it."""
    return page == b"".join(seal_page([page[: page.rfind(_SEAL)]]))


def baseline_note(facts: Mapping[str, Any]) -> str:
    """Say that the extractive backend answered all or part of a run, and what deployments say of themselves."""
    baselines, notes = facts.get("baselines", []), list(facts.get("notes", []))
    if baselines and len(baselines) == facts.get("n_answering"):
        notes.insert(0, "Answered by the extractive backend: no language model, but a baseline to compare models with.")
    elif baselines:
        named = ", ".join(baselines)
        notes.insert(0, f"Answered in part by the extractive backend ({named}): a baseline to compare models with.")
    return " ".join(notes)


def submission_of(run: str) -> str:
    """Find the submission in a finished run's directory; a file is returned as it is."""
    if not is_directory(run):
        return run
    file = join_path(run, "submission.csv")
    if not is_file(file):
        raise DataError(f"{run} holds no submission.csv: the run has not finished, or this is no run's directory")
    return file
