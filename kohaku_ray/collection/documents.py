"""Report what the parser makes of each file: documents with metadata, rejects, oddities; write KohakuRAG's JSON."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import pyarrow.compute as pc

from kohaku_ray.collection.sources import document_format, find_sources, read_metadata, resolve
from kohaku_ray.config import Config
from kohaku_ray.documents.data.kohakurag import write_kohakurag
from kohaku_ray.documents.figures import ImageSource, images_of, map_images, recaptioned
from kohaku_ray.documents.images import image_name
from kohaku_ray.documents.model import Document, Parsed
from kohaku_ray.documents.parse import parse_documents, read_in_time, without_repeated
from kohaku_ray.documents.text.content import UNREADABLE, UNREADABLE_SHARE, default_doc_id, valid_doc_id
from kohaku_ray.errors import DataError
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.nodes import KINDS, SENTENCE
from kohaku_ray.index.store import Index
from kohaku_ray.records import pluralize
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.storage import is_uri, make_directory, publish


def default_ids(files: Sequence[str]) -> dict[str, str]:
    """Ids of the files whose names are equal but for their folders: ``x-report``, ``y-report``.

    As few folders are named as tell them apart. Files of one folder, ``a.txt`` and ``a.pdf``, keep one id.
    """
    by_id: dict[str, list[str]] = {}
    for file in files:
        by_id.setdefault(default_doc_id(file), []).append(file)
    ids: dict[str, str] = {}
    for doc_id, same in by_id.items():
        folders = {file: PurePosixPath(file).parts[:-1] for file in same}
        if len(set(folders.values())) > 1:
            n = 1
            while len({parts[-n:] for parts in folders.values()}) < len(set(folders.values())):
                n += 1
            ids |= {
                file: "-".join((*(part.strip("/") for part in parts[-n:]), doc_id)) for file, parts in folders.items()
            }
    return ids


def parse_source(file: str, config: Config, default_id: str | None = None, data: bytes | None = None) -> Parsed:
    """Parse a file; one that cannot be used is a reject.

    ``default_id`` replaces an id that is the file's name; ``data`` is its content, where it is read already.
    """
    documents = config.documents
    images = ImageSource(None if documents.images is None else resolve(documents.images))
    try:
        parsed = parse_documents(
            file,
            read_in_time(file, documents.timeout_s) if data is None else data,
            documents.timeout_s,
            document_format(config),
            images if config.index.images else None,
            default_id,
        )
        kept = tuple(without_repeated(document, file, documents.timeout_s) for document in parsed.documents)
        parsed = replace(parsed, documents=kept)
        if default_id is not None and len(kept) == 1 and kept[0].doc_id == valid_doc_id(default_doc_id(file), file):
            parsed = replace(parsed, documents=(replace(kept[0], doc_id=valid_doc_id(default_id, file)),))
    except DataError as error:
        if "\\x" in file and not is_uri(file) and not os.path.exists(file):
            return Parsed((), ((file, "its name is not UTF-8: rename it"),))
        return Parsed((), ((file, str(error)),))
    if config.index.captions != "none":
        return parsed
    bare = tuple(map_images(document, lambda paragraph: recaptioned(paragraph, None)) for document in parsed.documents)
    return replace(parsed, documents=bare)


def rejected_images(file: str, parsed: Parsed) -> list[tuple[str, str]]:
    """List the images of a file that cannot be used: file and image, and the reason."""
    return [(f"{file}: {image}", reason) for document in parsed.documents for image, reason in document.image_rejects]


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Say how many images were left out, and why; empty without any."""
    parts = [f"{n} {reason}" for reason, n in sorted(left_out.items()) if n]
    n = sum(left_out.values())
    return f"{pluralize(n, 'image')} left out ({', '.join(parts)})" if parts else ""


def with_metadata(document: Document, metadata: Mapping[str, Mapping[str, str]]) -> Document:
    """Give a document the title and the metadata of its row of the metadata file, if it has one."""
    row = metadata.get(document.doc_id)
    if row is None:
        return document
    return replace(document, title=row.get("title", document.title), metadata={**document.metadata, **row})


def par_ids_of(document: Document) -> list[str]:
    """Ids that a document's paragraphs bring: unique in the index."""
    paragraphs = (paragraph for section in document.sections for paragraph in section.paragraphs)
    return [str(paragraph.attributes["par_id"]) for paragraph in paragraphs if "par_id" in paragraph.attributes]


def describe_reject(file: str, reason: str, paths: Sequence[str]) -> str:
    """Say why a file was rejected, once with its name, which is relative to that of ``documents.paths`` it is in."""
    text = reason if file in reason else f"{file}: {reason}"
    for path in sorted(paths, key=len, reverse=True):
        folder = (os.path.dirname(path) if path == file else path).rstrip("/")
        for start in dict.fromkeys((folder, folder if is_uri(folder) else os.path.abspath(folder))):
            # Where a path begins: ``docs/`` also stands within ``/srv/docs/a.md``.
            text = re.sub(rf"(?<![^\s'\"(]){re.escape(start)}/", "", text)
    return text


def rejected_gold(config: Config, index: Index, cited: Iterable[str]) -> dict[str, str]:
    """Find which of the documents that gold answers cite were rejected when they were indexed: by id, why."""
    reasons = {
        default_doc_id(row["file"]).lower(): describe_reject(row["file"], row["reason"], config.documents.paths)
        for row in index.rejects.to_pylist()
    }
    indexed = {str(doc_id).lower() for doc_id in index.documents["doc_id"].to_pylist()}
    return {ref: reasons[ref.lower()] for ref in cited if ref.lower() in reasons and ref.lower() not in indexed}


def describe_rejected_gold(rejected: Mapping[str, str]) -> str:
    """Say which documents of the gold answers were rejected, the first with its reason."""
    (first, reason), more = next(iter(rejected.items())), len(rejected) - 1
    others = f" (and {more} more: the index lists all rejects)" if more else ""
    return f"the gold answers cite {first}, which was rejected: {reason}{others}"


def split_used_and_rejected(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[tuple[str, str], ...]]:
    """Separate documents and rejects: of files with what must be unique the first is used.

    Args:
        rows: One per document or reject: file, where (the file, or which part of it), doc_id, reason (None for a
            document), par_ids, words (``DocumentFormat.digest``, else None); further columns are kept.

    Returns:
        The rows of documents that are used, sorted by id, and the rejects with their reasons.
    """
    used: list[dict[str, Any]] = []
    rejects: list[tuple[str, str]] = []
    owner: dict[tuple[str, str], str] = {}
    for row in sorted(rows, key=lambda row: (row["file"], row["doc_id"] or "")):
        ids = [("doc_id", row["doc_id"]), *(("par_id", par_id) for par_id in row["par_ids"] or ())]
        ids += [("words", row["words"])] if row["words"] else []
        taken = next((unique_id for unique_id in ids if unique_id in owner), None)
        if row["reason"] is not None:
            rejects.append((row["where"], row["reason"]))
        elif taken is not None and taken[0] == "words":
            rejects.append((row["where"], f"the same text as {owner[taken]}, word for word: remove one of the files"))
        elif taken is not None:
            rejects.append(
                (row["where"], f"{taken[0]} {taken[1]!r} is already that of {owner[taken]}: rename one of them")
            )
        else:
            owner |= dict.fromkeys(ids, row["where"])
            used.append(row)
    return sorted(used, key=lambda row: row["doc_id"]), tuple(rejects)


LONG_SENTENCE_CHARS = 2000
"""A longer sentence is odd: encoders read it in several windows."""


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A document of a file, with the metadata of its row, and what is odd about it, each with its place."""

    file: str
    document: Document
    odd: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[str]:
        """Numbers of sections, paragraphs, sentences, tables, images and pages."""
        sections = self.document.sections
        paragraphs = [paragraph for section in sections for paragraph in section.paragraphs]
        counts = Counter(
            f"{paragraph.attachment.kind}s" for paragraph in paragraphs if paragraph.attachment is not None
        )
        counts["pages"] = self.document.n_pages or max((paragraph.page or 0 for paragraph in paragraphs), default=0)
        counts["sections"], counts["paragraphs"] = len(sections), len(paragraphs)
        counts["sentences"] = sum(len(paragraph.sentences) for paragraph in paragraphs)
        return counts

    @property
    def numbers(self) -> str:
        """The counts in words, without those that are 0."""
        counts, kinds = self.counts, ("pages", "sections", "paragraphs", "sentences", "tables", "images")
        return ", ".join(
            f"{counts[kind]:,} {kind if counts[kind] != 1 else kind[:-1]}" for kind in kinds if counts[kind]
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """All files of a configuration, parsed: used documents by id, rejects with reasons, images without content."""

    n_files: int
    documents: tuple[DocumentView, ...]
    rejects: tuple[tuple[str, str], ...]
    images_left_out: Mapping[str, int] = field(default_factory=dict)
    odd: tuple[str, ...] = ()  # about the metadata file

    def only(self, doc_id: str) -> Collection:
        """Keep one document.

        Raises:
            DataError: There is no such document; the message names those that are like it.
        """
        views = tuple(view for view in self.documents if view.document.doc_id == doc_id)
        if not views:
            ids = [view.document.doc_id for view in self.documents]
            near = difflib.get_close_matches(doc_id, ids, 3) or ids[:5]
            raise DataError(f"there is no document {doc_id!r} among {len(ids)}: such as {', '.join(near) or 'none'}")
        return replace(self, documents=views, rejects=())


def parse_collection(config: Config, report: Callable[[int, int], object] = lambda n, n_files: None) -> Collection:
    """Parse the configured files one after the other, as the index job does, without Ray.

    ``report`` takes after each file how many are parsed, and their number.

    Raises:
        DataError: A path does not exist, or the metadata file cannot be used.
    """
    config = resolve_paths(config)
    odd: list[str] = []
    files, metadata = find_sources(config), read_metadata(config.documents.metadata, odd)
    digest = document_format(config).digest
    ids = default_ids(files)
    rows: list[dict[str, Any]] = []
    left_out = Counter[str]()
    for number, file in enumerate(files, 1):
        parsed = parse_source(file, config, ids.get(file))
        rows += [
            {"file": file, "where": where, "doc_id": None, "reason": reason, "par_ids": None, "words": None}
            for where, reason in (*parsed.rejects, *rejected_images(file, parsed))
        ]
        for parsed_document in parsed.documents:
            left_out.update(parsed_document.images_left_out)
            document = with_metadata(parsed_document, metadata)
            words = digest(document) if digest else None
            where = file if len(parsed.documents) == 1 else f"{file}: {document.doc_id}"
            row: dict[str, Any] = {"file": file, "where": where, "doc_id": document.doc_id, "document": document}
            row |= {"reason": None, "par_ids": par_ids_of(document), "words": words}
            try:
                flatten(document)
            except DataError as error:
                row["reason"] = str(error)
            rows.append(row)
        report(number, len(files))
    used, rejects = split_used_and_rejected(rows)
    views = [
        DocumentView(row["file"], row["document"], (*row["document"].odd, *_odd_texts(row["document"]))) for row in used
    ]
    return Collection(len(files), tuple(views), rejects, left_out, tuple(odd))


def count_changes(index: Index, config: Config) -> tuple[int, int]:
    """Parse the configured files now: how many texts another index of them would not share with this one, and all.

    Raises:
        DataError: The files, or the index, cannot be read.
    """
    table = index.nodes.table
    rows = table.filter(pc.field("kind") == KINDS[SENTENCE]).select(["doc_id", "text"])
    before = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    now = Counter[tuple[str, str]]()
    for view in parse_collection(config).documents:
        nodes = flatten(view.document).filter(pc.field("kind") == KINDS[SENTENCE])
        now.update((view.document.doc_id, text) for text in nodes["text"].to_pylist())
    return max((before - now).total(), (now - before).total()), before.total()


def _odd_texts(document: Document) -> tuple[str, ...]:
    """Sentences that are too long, and texts without a meaning, each with its place."""
    oddities = []
    for outer, section in enumerate(document.sections):
        for inner, paragraph in enumerate(section.paragraphs):
            longest = max((span.end - span.start for span in paragraph.sentences), default=0)
            n_unreadable = len(UNREADABLE.findall(paragraph.text))
            if longest > LONG_SENTENCE_CHARS:
                oddities.append(f"sec{outer}:p{inner}: a sentence of {longest:,} characters")
            if n_unreadable > UNREADABLE_SHARE * len(paragraph.text):
                oddities.append(f"sec{outer}:p{inner}: unreadable characters ({n_unreadable} of {len(paragraph.text)})")
    return tuple(oddities)


def write_trees(views: Sequence[DocumentView], directory: str) -> list[str]:
    """Write each document as KohakuRAG JSON, ``DOC_ID.json``, from which it can be indexed again; returns the paths."""
    make_directory(directory)
    paths = []
    for view in views:
        paths.append(os.path.join(directory, f"{view.document.doc_id}.json"))
        publish(paths[-1], write_kohakurag(view.document).encode())
        for _, _, image in images_of(view.document):
            make_directory(os.path.join(directory, "images"))
            publish(os.path.join(directory, image_name(image.digest)), image.data)
    return paths
