"""Join images to documents: their files, their captions and the sentences that name them."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from kohaku_ray.documents.images import BadImageError, SmallImageError, data_uri, image_name, read_image
from kohaku_ray.documents.model import Document, Image, Paragraph
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.errors import DataError
from kohaku_ray.store.storage import is_uri, join_path

MAX_MENTIONS = 6  # most sentences kept that mention one figure
MAX_RANGE = 20  # most figures that ``Figures 2–5`` may name
_NUMBER = r"(?:[A-Z]\.?)?\d{1,3}(?:\.\d{1,3})?"
_LABEL = re.compile(rf"fig(?:ure|\.)?\s*({_NUMBER})", re.IGNORECASE)
_MENTION = re.compile(
    rf"\bfig(?:ure)?s?\.?\s*({_NUMBER}[a-z]?\)?(?:\s*(?:,\s*and|,|and|&|or|to|–|-)\s*{_NUMBER}[a-z]?\b)*)",
    re.IGNORECASE,
)
_NAMED = re.compile(rf"({_NUMBER})[a-z]?(?:\s*(?:–|-|to)\s*({_NUMBER}))?", re.IGNORECASE)


def with_mentions(document: Document) -> Document:
    """Give each image its caption, and the sentences of the document that name its figure."""
    labels = {_label(paragraph) for _, paragraph, _ in images_of(document)} - {None}
    sentences: dict[str, list[str]] = defaultdict(list)
    if labels:
        for section in document.sections:
            for paragraph in section.paragraphs:
                label = _label(paragraph)
                for span in paragraph.sentences:
                    text = paragraph.text[span.start : span.end]
                    for number in figures_named(text):
                        if number in labels and number != label:
                            sentences[number].append(text)

    def finished(paragraph: Paragraph) -> Paragraph:
        mentions = tuple(dict.fromkeys(sentences.get(_label(paragraph) or "", ())))[:MAX_MENTIONS]
        caption = paragraph.attachment.caption if paragraph.attachment else None
        return with_image(paragraph, lambda image: replace(image, caption=caption, mentions=mentions))

    return map_images(document, finished)


def figures_named(text: str) -> list[str]:
    """List the numbers of the figures that a sentence names: ``Figs. 2–4 and A.1`` names 2, 3, 4 and A.1."""
    numbers: dict[str, None] = {}
    for mention in _MENTION.finditer(text):
        for first, last in _NAMED.findall(mention[1]):
            numbers[first.upper()] = None
            if first.isdigit() and last.isdigit() and 0 < int(last) - int(first) < MAX_RANGE:
                numbers |= dict.fromkeys(map(str, range(int(first), int(last) + 1)))
            elif last:
                numbers[last.upper()] = None
    return list(numbers)


def with_image(paragraph: Paragraph, change: Callable[[Image], Image]) -> Paragraph:
    """Copy an image paragraph with its image changed."""
    attachment, image = paragraph.attachment, image_of(paragraph)
    if attachment is None or image is None:
        return paragraph
    return replace(paragraph, attachment=replace(attachment, image=change(image)))


def image_of(paragraph: Paragraph) -> Image | None:
    """Return the pixels of a paragraph that stands for an image, where they are known."""
    return None if paragraph.attachment is None else paragraph.attachment.image


def recaptioned(paragraph: Paragraph, caption: str | None) -> Paragraph:
    """Copy an image paragraph with another caption, which is its text."""
    text = caption or ""
    attachment = paragraph.attachment and replace(paragraph.attachment, caption=caption)
    return replace(paragraph, text=text, sentences=split_sentences(text), attachment=attachment)


def map_images(document: Document, change: Callable[[Paragraph], Paragraph]) -> Document:
    """Copy a document with its image paragraphs changed, those whose pixels are known."""
    return map_named(document, lambda paragraph: paragraph if image_of(paragraph) is None else change(paragraph))


def map_named(document: Document, change: Callable[[Paragraph], Paragraph | None]) -> Document:
    """Copy a document with its paragraphs changed; None leaves one out."""
    sections = [
        replace(
            section, paragraphs=tuple(changed for old in section.paragraphs if (changed := change(old)) is not None)
        )
        for section in document.sections
    ]
    return replace(document, sections=tuple(sections))


def images_of(document: Document) -> Sequence[tuple[str, Paragraph, Image]]:
    """List the images of a document: the id of each one's node, its paragraph and its pixels."""
    return [
        (f"{document.doc_id}:sec{number}:p{inner}", paragraph, image)
        for number, section in enumerate(document.sections)
        for inner, paragraph in enumerate(section.paragraphs)
        if (image := image_of(paragraph)) is not None
    ]


def _label(paragraph: Paragraph) -> str | None:
    """Number of an image's figure, as its caption gives it."""
    attachment = paragraph.attachment
    match = _LABEL.match(attachment.caption or "") if attachment and attachment.image else None
    return match[1].upper() if match else None


SET_IMAGES = "set index.images to true"  # how images are turned on
IMAGES_SHOWN = 3  # most images named in the message about a document without any that can be used


def has_sentences(document: Document) -> bool:
    """Whether a paragraph has a sentence."""
    return any(paragraph.sentences for section in document.sections for paragraph in section.paragraphs)


def names_images(document: Document) -> bool:
    """Whether a paragraph stands for an image, read or not."""
    return any(
        paragraph.attachment is not None and paragraph.attachment.kind == "image"
        for section in document.sections
        for paragraph in section.paragraphs
    )


def no_text(name: str, images: bool) -> DataError:
    """Refuse a file in which there is nothing to search; ``images``: whether they are extracted."""
    way_out = "" if images else f" (if it holds images, {SET_IMAGES} to index them)"
    return DataError(f"{name} has no text: nothing in it can be searched{way_out}.")


def no_image(name: str, rejects: Sequence[tuple[str, str]], left_out: Mapping[str, int]) -> DataError:
    """Refuse a file that names images alone, none of which can be used: rejects by place, others counted by reason."""
    shown = [f"{position}: {reason}" for position, reason in rejects[:IMAGES_SHOWN]]
    shown += [f"{len(rejects) - IMAGES_SHOWN} more"] if len(rejects) > IMAGES_SHOWN else []
    shown += [f"{n} left out: {reason}" for reason, n in sorted(left_out.items()) if n]
    way_out = (
        "name the directory of its images as documents.images" if left_out.get("without a file") else "repair them"
    )
    return DataError(
        f"{name} has no text and no image that can be used ({'; '.join(shown)}): {way_out}, or leave the file out."
    )


SHOWN_CHARS = 80  # longest address of an image in a message
_SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]+:|//)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImageSource:
    """How images are extracted."""

    directory: str | None = None  # of the files that KohakuRAG placeholders name


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
        if is_uri(self.name):
            own_path, mark, options = self.name.partition("?")
            directory = f"{own_path.rpartition('/')[0]}{mark}{options}"
        else:
            directory = os.path.dirname(os.path.abspath(os.path.expanduser(self.name)))
        return self.read(_inside(directory, path))

    def _placeholder(self, source: str) -> bytes | None:
        if self.directory is None or not source:
            self.left_out["without a file"] += 1
            return None
        last = posixpath.basename(source.replace("\\", "/"))
        tried = list(dict.fromkeys([source, f"{self.doc_id}/{last}", last]))
        for path in tried:
            with suppress(DataError):  # there is none, or it lies outside the directory
                return self.read(_inside(self.directory, path))
        raise BadImageError(f"no file {' or '.join(tried)} in documents.images, {self.directory}")


def attach_images(
    document: Document,
    name: str,
    read: Callable[[str], bytes],
    source: ImageSource,
    is_placeholder: bool = False,
) -> Document:
    """Give the images that a document names their pixels; nothing is fetched from the network.

    Addresses are relative to the file and must stay inside its directory; those of placeholders are below
    ``source.directory``. An image that cannot be used is a row of ``image_rejects``, and its paragraph stays if it has
    a caption.
    """
    reader = _Reader(name, document.doc_id, source.directory, read, is_placeholder)
    made = map_named(document, reader.attach)
    return replace(
        made,
        image_rejects=(*document.image_rejects, *reader.rejects),
        images_left_out=dict(Counter(document.images_left_out) + +reader.left_out),
    )


def _inside(directory: str, path: str) -> str:
    """Join a relative path to a directory; BadImageError where it leads out of it, links included."""
    relative = posixpath.normpath(path.replace("\\", "/"))
    if relative.startswith(("/", "..")) or "\0" in relative or os.path.isabs(path):
        raise BadImageError("its address leads out of the document's directory: put the file below that")
    if is_uri(directory):
        return join_path(directory, relative)
    whole, root = os.path.realpath(os.path.join(directory, relative)), os.path.realpath(directory)
    if os.path.commonpath([whole, root]) != root:
        raise BadImageError("it is a link that leads out of the document's directory: copy the file there")
    return whole
