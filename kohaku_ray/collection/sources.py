"""Resolve where inputs come from (paths, URIs, the sample collection inside the package), and check outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import unquote

from kohaku_ray import sample
from kohaku_ray.config import Config
from kohaku_ray.documents.data.rows import ROW_FORMATS, RowTable, cell_of, check_ids, read_table, suffix_of
from kohaku_ray.documents.find import find_files, links_out, passed_over
from kohaku_ray.documents.formats import DocumentFormat, find_format
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.documents.text.content import clean_print, valid_doc_id
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.store import MANIFEST
from kohaku_ray.records import Question
from kohaku_ray.settings import SAMPLE, check_kept
from kohaku_ray.store.storage import is_directory, is_file, is_uri, join_path
from kohaku_ray.store.tables import ANSWER_FILES
from kohaku_ray.systems.questions import questions_in

_IMAGES = frozenset({"png", "jpg", "jpeg", "gif", "webp", "bmp", "tif", "tiff", "svg", "jp2"})
_MOST_NAMED = 3


def check_places(config: Config) -> None:
    """Check that outputs, index and ledger each have a directory of their own, which outlives the job.

    Raises:
        ConfigError: One of them has not.
    """
    directories = {"run": config.run, "index.path": config.index.path, "ledger.path": config.ledger.path}
    documents = [_real(resolve(path)) for path in config.documents.paths]
    taken = dict.fromkeys(documents, "documents.paths")
    for key, path in directories.items():
        if not path.strip() or "\0" in path:
            raise ConfigError(f"{key} is {path!r}, which names no directory: give one, such as runs/mine")
        real = _real(path)
        if real == "/":
            raise ConfigError(f"{key} is {path}, the root of all files: give a directory, such as runs/mine")
        if real in taken:
            raise ConfigError(f"{key} and {taken[real]} are both {path}: give each a directory of its own")
        if os.path.isfile(real):
            raise ConfigError(f"{key} is {path}, a file: give a directory, such as runs/mine")
        if around := [root for root in documents if real.startswith(f"{root}/")]:
            raise ConfigError(
                f"{key} is {path}, inside {around[0]} of documents.paths, whose files are read as documents: give a "
                "directory outside"
            )
        taken[real] = key
    for key, mark, holds in (
        ("run", MANIFEST, "an index"),
        ("ledger.path", MANIFEST, "an index"),
        ("ledger.path", "run.json", "a run"),
        ("index.path", "run.json", "a run"),
    ):
        if is_file(join_path(directories[key], mark)):
            raise ConfigError(f"{key} is {directories[key]}, which holds {holds}: give it a directory of its own")
    run_files = () if is_file(join_path(config.run, "run.json")) else ("config.yaml", *ANSWER_FILES)
    if yours := next((name for name in run_files if is_file(join_path(config.run, name))), None):
        raise ConfigError(
            f"run is {config.run}, no run's directory (it has no run.json), whose {yours} a run would replace: give a "
            "directory of its own, such as runs/mine"
        )
    check_kept(directories)


def _real(path: str) -> str:
    """One spelling per place: a local path without links, a URI without its last slash."""
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    return path.rstrip("/") if is_uri(path) else os.path.realpath(path)


def check_images(config: Config) -> None:
    """Check that the directory is there which ``documents.images`` names."""
    path = config.documents.images
    if config.index.images and path is not None and not is_directory(resolve(path)):
        raise DataError(f"documents.images is {path}, where there is no directory: name that of the image files")


def resolve(path: str) -> str:
    """Turn ``sample:NAME`` into a path; leave every other path as it is."""
    return sample.path(path.removeprefix(SAMPLE)) if path.startswith(SAMPLE) else path


def read_source(path: str) -> tuple[str, bytes]:
    """Read one input file; returns its name and its bytes."""
    where = resolve(path)
    return where, read_bytes(where)


def question_table(config: Config) -> RowTable:
    """Read the file of questions, and perhaps of their gold answers."""
    name, data = read_source(config.questions.path)
    return read_table(name, data, "questions", keep_ragged=False)


def questions_of(config: Config, odd: list[str] | None = None, table: RowTable | None = None) -> list[Question]:
    """Read the questions a run answers, from their ``table`` if it was read; ``odd`` takes what is odd about it."""
    name, columns = resolve(config.questions.path), config.declaration.columns
    table = question_table(config) if table is None else table
    return questions_in(name, table, config.questions.limit, columns, odd)


def format_name(config: Config) -> str:
    """Name of the format in which files are read: as configured, else as the system wants it."""
    return config.documents.format or config.declaration.document_format


def document_format(config: Config) -> DocumentFormat:
    """Format in which files are read; a ``ConfigError`` says that there is none of that name."""
    return find_format(format_name(config))


def find_sources(config: Config) -> list[str]:
    """List the files of the configured documents, sorted, without metadata and question files among them.

    Raises:
        DataError: A path does not exist, or a directory holds no document.
    """
    paths = [resolve(path) for path in config.documents.paths]
    files = find_files(paths, config.documents.follow_links, document_format(config))
    beside = _beside(config)
    return [file for file in files if file not in beside]


def _beside(config: Config) -> set[str]:
    return {resolve(path) for path in (config.documents.metadata, config.questions.path) if path is not None}


def describe_passed_over(config: Config) -> str:
    """Name the files of the configured directories that are no documents, and links out of them; empty without any.

    Metadata, questions, rows that are named besides, and images, which other files show, are not counted.
    """
    paths = [resolve(path) for path in config.documents.paths]
    known, notes = {*paths, *_beside(config)}, []
    if left := [
        file
        for file in passed_over(paths, document_format(config))
        if file not in known and suffix_of(file) not in _IMAGES
    ]:
        rows = any(f".{suffix_of(file)}" in ROW_FORMATS for file in left)
        way_out = " (name files of JSON lines and Parquet themselves in documents.paths)" if rows else ""
        notes.append(f"{_files(left, 'has a suffix that is not read', 'have suffixes that are not read')}{way_out}")
    if links := [] if config.documents.follow_links else links_out(paths):
        what = _files(links, "is a link out of its directory", "are links out of their directory")
        notes.append(f"{what} (documents.follow_links: true follows links)")
    return "; ".join(notes)


def _files(files: Sequence[str], is_one: str, are_many: str) -> str:
    what = f"file there {is_one}" if len(files) == 1 else f"files there {are_many}"
    return f"{len(files)} {what}: {first_of(files)}"


def first_of(names: Sequence[str]) -> str:
    """Name the first items of a list, and say when there are more."""
    return ", ".join([*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])


def read_metadata(path: str | None, odd: list[str] | None = None) -> dict[str, dict[str, str]]:
    """Read title, url, year, type and citation of documents, by document id.

    Args:
        path: CSV, JSON lines or Parquet with a column ``id``; None: there is no metadata.
        odd: Takes what is odd about the file, a line each; None: a job reads what was read and said before.

    Raises:
        DataError: The file cannot be read, has no ``id`` column, or an id is missing or used twice.
    """
    if path is None:
        return {}
    name, data = read_source(path)
    table = read_table(name, data, "metadata", keep_ragged=False)
    if "id" not in table.columns:
        raise DataError(f"{name}: no column id; it has {clean_print(', '.join(table.columns)) or 'nothing'}")
    cells = [{key: cell_of(value).strip() for key, value in row.items()} for row in table.rows]
    check_ids(name, table, [row.get("id", "") if any(row.values()) else None for row in cells], "documents")
    rows = [row for row in cells if any(row.values())]
    if odd is not None:
        odd += [f"{name}: {what}" for what in table.odd]
    return {
        valid_doc_id(row["id"], name): {key: text for key, text in row.items() if text and key and key != "id"}
        for row in rows
    }
