"""One file parsed as a configuration says, with the metadata of its documents: by the index job and by `documents`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kohaku_ray.config import Config
from kohaku_ray.documents.figures import ImageSource, map_images, recaptioned
from kohaku_ray.documents.model import Document, Parsed
from kohaku_ray.documents.parse import parse_documents, read_in_time
from kohaku_ray.documents.site import without_repeated
from kohaku_ray.errors import DataError
from kohaku_ray.run.indexes import document_format
from kohaku_ray.run.sources import resolve


def parse_source(file: str, config: Config) -> Parsed:
    """Parse a file; one that cannot be used is a reject."""
    documents, form = config.documents, document_format(config)
    images = ImageSource(None if documents.images is None else resolve(documents.images))
    try:
        parsed = parse_documents(
            file,
            read_in_time(file, documents.timeout_s),
            documents.timeout_s,
            form,
            documents.sentence_split,
            images if config.index.images else None,
        )
        kept = tuple(without_repeated(one, file, documents.timeout_s) for one in parsed.documents)
        parsed = replace(parsed, documents=kept)
    except DataError as error:
        return Parsed((), ((file, str(error)),))
    if config.index.captions != "none":
        return parsed
    bare = tuple(map_images(document, lambda one: recaptioned(one, None)) for document in parsed.documents)
    return replace(parsed, documents=bare)


def rejected_images(file: str, parsed: Parsed) -> list[tuple[str, str]]:
    """List the images of a file that cannot be used: file and image, and the reason."""
    return [(f"{file}: {place}", reason) for one in parsed.documents for place, reason in one.image_rejects]


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Say how many images were left out, and why; empty without any."""
    parts = [f"{n} {reason}" for reason, n in sorted(left_out.items()) if n]
    n = sum(left_out.values())
    return f"{n} image{'s' if n > 1 else ''} left out ({', '.join(parts)})" if parts else ""


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


def sort_out(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[tuple[str, str], ...]]:
    """Separate documents and rejects: the first file has what is doubled, a document's or paragraph's id or a novel.

    Args:
        rows: One per document or reject: file, where (the file, or which part of it), doc_id, reason (None for a
            document), par_ids, words (digest of a novel's words, else None); further columns are kept.

    Returns:
        The rows of documents that are used, sorted by id, and the rejects with their reasons.
    """
    used: list[dict[str, Any]] = []
    rejects: list[tuple[str, str]] = []
    owner: dict[tuple[str, str], str] = {}
    for row in sorted(rows, key=lambda row: (row["file"], row["doc_id"] or "")):
        ids = [("doc_id", row["doc_id"]), *(("par_id", par_id) for par_id in row["par_ids"] or ())]
        ids += [("words", row["words"])] if row["words"] else []
        taken = next((one for one in ids if one in owner), None)
        if row["reason"] is not None:
            rejects.append((row["where"], row["reason"]))
        elif taken is not None and taken[0] == "words":
            rejects.append((row["where"], f"the same book as {owner[taken]}, word for word: remove one of the files"))
        elif taken is not None:
            rejects.append(
                (row["where"], f"{taken[0]} {taken[1]!r} is already that of {owner[taken]}: rename one of them")
            )
        else:
            owner |= dict.fromkeys(ids, row["where"])
            used.append(row)
    return sorted(used, key=lambda row: row["doc_id"]), tuple(rejects)
