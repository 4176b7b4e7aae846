"""Whether a document holds anything to search, and why one without text is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kohaku_ray.documents.model import Document
from kohaku_ray.errors import DataError

SET_IMAGES = "set index.images to true"
"""How images are turned on."""

IMAGES_SHOWN = 3
"""Most images named in the message about a document without any that can be used."""


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
    """Refuse a file in which there is nothing to search.

    Args:
        name: The file.
        images: Whether images are extracted.
    """
    way_out = "" if images else f" (if it holds images, {SET_IMAGES} to index them)"
    return DataError(f"{name} has no text: nothing in it can be searched{way_out}.")


def no_image(name: str, rejects: Sequence[tuple[str, str]], left_out: Mapping[str, int]) -> DataError:
    """Refuse a file that names images alone, none of which can be used.

    Args:
        name: The file.
        rejects: Place and reason per image that cannot be used.
        left_out: Number of images left out, by reason.
    """
    shown = [f"{place}: {reason}" for place, reason in rejects[:IMAGES_SHOWN]]
    shown += [f"{len(rejects) - IMAGES_SHOWN} more"] if len(rejects) > IMAGES_SHOWN else []
    shown += [f"{n} left out: {reason}" for reason, n in sorted(left_out.items()) if n]
    way_out = (
        "name the directory of its images as documents.images" if left_out.get("without a file") else "repair them"
    )
    return DataError(
        f"{name} has no text and no image that can be used ({'; '.join(shown)}): {way_out}, or leave the file out."
    )
