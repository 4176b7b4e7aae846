"""Images that a document names: files beside it, data URIs, and files of KohakuRAG placeholders."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from kohaku_ray.documents.figures import map_named
from kohaku_ray.documents.images import BadImageError, SmallImageError, data_uri, image_name, read_image
from kohaku_ray.documents.model import Document, Image, Paragraph
from kohaku_ray.errors import DataError
from kohaku_ray.storage import below, is_uri

SHOWN_CHARS = 80
"""Longest address of an image in a message."""

_SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]+:|//)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImageSource:
    """How images are extracted.

    Attributes:
        directory: Directory of the files that KohakuRAG placeholders name; None: there are none.
    """

    directory: str | None = None


@dataclass
class _Reader:
    """Reads the images of one document, each once."""

    name: str
    doc_id: str
    directory: str | None
    read: Callable[[str], bytes]
    is_placeholder: bool
    rejects: list[tuple[str, str]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    images: dict[str, Image | None] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def attach(self, paragraph: Paragraph) -> Paragraph | None:
        """Give an image paragraph its pixels; None: it is left out."""
        attachment = paragraph.attachment
        if attachment is None or attachment.kind != "image" or attachment.image is not None:
            return paragraph
        source = attachment.path or ""
        plain = replace(attachment, path=None) if source.startswith("data:") else attachment
        if source not in self.images:
            self.images[source] = self._image(source)
        image = self.images[source]
        if image is None or image.digest in self.seen:
            self.left_out["repeated"] += image is not None
            return replace(paragraph, attachment=plain) if paragraph.sentences else None
        self.seen.add(image.digest)
        return replace(paragraph, attachment=replace(plain, path=image_name(image.digest), image=image))

    def _image(self, source: str) -> Image | None:
        try:
            data = data_uri(source)
            if data is None:
                data = self._file(source)
            return None if data is None else read_image(data)
        except SmallImageError:
            self.left_out["small"] += 1
        except BadImageError as error:
            self._reject(source, str(error))
        except DataError as error:
            self._reject(source, f"cannot be read: {error}")
        return None

    def _reject(self, source: str, reason: str) -> None:
        shown = source if len(source) <= SHOWN_CHARS else f"{source[:SHOWN_CHARS]}…"
        self.rejects.append((f"image {shown or '(no address)'}", reason))

    def _file(self, source: str) -> bytes | None:
        """Read the file of an address; None: it is left out, and counted."""
        if self.is_placeholder:
            return self._placeholder(source)
        if _SCHEME.match(source):
            self.left_out["remote"] += 1  # nothing is fetched
            return None
        path = unquote(source.partition("#")[0].partition("?")[0])
        return self.read(_inside(_parent(self.name), path))

    def _placeholder(self, source: str) -> bytes | None:
        if self.directory is None or not source:
            self.left_out["without a file"] += 1
            return None
        last = posixpath.basename(source.replace("\\", "/"))
        tried = list(dict.fromkeys([source, f"{self.doc_id}/{last}", last]))
        for path in tried:
            try:
                return self.read(_inside(self.directory, path))
            except BadImageError:
                continue  # outside the directory
            except DataError:
                continue
        raise BadImageError(f"no file {' or '.join(tried)} in documents.images, {self.directory}")


def attach_images(
    document: Document,
    name: str,
    read: Callable[[str], bytes],
    source: ImageSource,
    is_placeholder: bool = False,
) -> Document:
    """Give the images that a document names their pixels; nothing is fetched from the network.

    Args:
        document: Its image paragraphs have an address as their path.
        name: Path or URI of its file: addresses are relative to it, and must stay inside its directory.
        read: Reads a file.
        source: How images are extracted.
        is_placeholder: Whether the paths are those of placeholders.

    Returns:
        The document; an image that cannot be used is a row of ``image_rejects``, and its paragraph stays if it has a
        caption.
    """
    reader = _Reader(name, document.doc_id, source.directory, read, is_placeholder)
    made = map_named(document, reader.attach)
    return replace(
        made,
        image_rejects=(*document.image_rejects, *reader.rejects),
        images_left_out=dict(Counter(document.images_left_out) + +reader.left_out),
    )


def _parent(name: str) -> str:
    """Directory of a file; of a URI with its options."""
    if not is_uri(name):
        return os.path.dirname(os.path.abspath(os.path.expanduser(name)))
    path, mark, options = name.partition("?")
    return f"{path.rpartition('/')[0]}{mark}{options}"


def _inside(directory: str, path: str) -> str:
    """Join a relative path to a directory.

    Raises:
        BadImageError: It leads out of it, links included.
    """
    relative = posixpath.normpath(path.replace("\\", "/"))
    if relative.startswith(("/", "..")) or "\0" in relative or os.path.isabs(path):
        raise BadImageError("its address leads out of the document's directory: put the file below that")
    if is_uri(directory):
        return below(directory, relative)
    whole, root = os.path.realpath(os.path.join(directory, relative)), os.path.realpath(directory)
    if os.path.commonpath([whole, root]) != root:
        raise BadImageError("it is a link that leads out of the document's directory: copy the file there")
    return whole
