"""Extract the embedded images of a PDF, as they are seen on its pages."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kohaku_ray.documents.images import (
    MIN_PIXELS,
    BadImageError,
    SmallImageError,
    as_image,
    check_pixels,
    on_white,
)
from kohaku_ray.documents.model import Image
from kohaku_ray.documents.pdf.page import Page, Picture

MIN_LOGO_PAGES = 3  # fewest pages of a logo (marker#433): two may be a figure and its repetition
LOGO_SHARE = 0.5  # an image on a larger share of the pages is a logo
_BROKEN = ("truncated", "ignoring zlib error", "decode error", "premature end", "corrupt", "cannot decode")
"""What MuPDF warns of when it fills the rest of a broken image."""


class PdfImages:
    """Extracts the images of one PDF, window by window."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()  # number of images left out, by reason
        self.rejects: list[tuple[str, str]] = []  # images that cannot be used: place and reason
        self._pages: Counter[bytes] = Counter()
        self._n_pages = 0
        self._known: set[bytes] = set()

    def extract(self, window: Sequence[Page]) -> None:
        """Decode the images of the next pages; ``page.images`` keeps the places of those that are used.

        An image on most of the pages so far is a logo.
        """
        keys = {id(picture): _digest_of(picture) for page in window for picture in page.pictures.values()}
        self._n_pages += len(window)
        for page in window:
            self._pages.update({keys[id(picture)] for picture in page.pictures.values()})
            self.left_out.update(page.left_out)
        for page in window:
            kept = []
            for box in page.images:
                key = keys[id(page.pictures[box])]
                if self._pages[key] >= MIN_LOGO_PAGES and self._pages[key] > LOGO_SHARE * self._n_pages:
                    self.left_out["logo"] += 1
                elif key in self._known:
                    self.left_out["repeated"] += 1
                else:
                    self._known.add(key)
                    kept.append(box)
            page.images = kept
            self._decode(page)

    def _decode(self, page: Page) -> None:
        for number, box in enumerate(list(page.images), 1):
            try:
                page.extracted[box] = _decoded(page.pictures[box])
            except SmallImageError:
                self.left_out["small"] += 1
                page.images.remove(box)
            except BadImageError as error:
                self.rejects.append((f"page {page.number}, image {number}", str(error)))
        page.pictures.clear()


def _digest_of(picture: Picture) -> bytes:
    """Digest of an image's compressed bytes and of its mask's: the same image under two numbers is one."""
    from pymupdf import mupdf

    hashed = hashlib.blake2b(repr(picture.axes_signs).encode(), digest_size=16)
    for image in (picture.image, picture.image.mask()):
        if image is None or not image.m_internal:
            continue
        hashed.update(f"{image.w()}x{image.h()}".encode())
        stream = mupdf.fz_compressed_image_buffer(image)
        if stream.m_internal:
            buffer = mupdf.FzBuffer(mupdf.ll_fz_keep_buffer(stream.m_internal.buffer))
            hashed.update(mupdf.fz_buffer_extract_copy(buffer))
        else:
            hashed.update(str(id(picture)).encode())
    return hashed.digest()


def _decoded(picture: Picture) -> Image:
    """Decode an embedded image as it is seen on the page; BadImageError where it cannot be used."""
    import pymupdf
    from PIL import Image as Pillow

    check_pixels(picture.image.w(), picture.image.h())
    pymupdf.TOOLS.reset_mupdf_warnings()
    try:
        pixels = _pixels(picture.image)
        mask = picture.image.mask()
        if mask is not None and mask.m_internal:
            check_pixels(max(mask.w(), MIN_PIXELS), max(mask.h(), MIN_PIXELS))
            pixels = on_white(pixels, _pixels(mask, is_mask=True))
    except (RuntimeError, ValueError, MemoryError, pymupdf.mupdf.FzErrorBase) as error:
        raise BadImageError(f"broken ({str(error)[:120]})") from None
    warned = pymupdf.TOOLS.mupdf_warnings()
    if any(warning in warned for warning in _BROKEN):
        raise BadImageError(f"broken ({' '.join(warned.split())[:120]})")
    across, mirrored, flipped = picture.axes_signs
    if across:
        pixels = pixels.transpose(Pillow.Transpose.TRANSPOSE)
    if mirrored:
        pixels = pixels.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT)
    if flipped:
        pixels = pixels.transpose(Pillow.Transpose.FLIP_TOP_BOTTOM)
    return as_image(pixels)


def _pixels(image: Any, is_mask: bool = False) -> Any:
    """Decode an image to RGB or grey; transparent pixels, as of a stencil or a colour key, become white.

    A mask is grey: white where its image is opaque.
    """
    import pymupdf
    from PIL import Image as Pillow
    from pymupdf import mupdf

    pixels = image.fz_get_unscaled_pixmap_from_image()
    space = pixels.colorspace()
    n_colours = pixels.n() - pixels.alpha()
    if space.m_internal and (n_colours not in (1, 3) or "Lab" in space.fz_colorspace_name()):
        pixels, n_colours = pymupdf.Pixmap(pymupdf.csRGB, pixels).this, 3
    mode = {(1, 0): "L", (3, 0): "RGB", (3, 1): "RGBA", (1, 1): "LA", (0, 1): "L"}[n_colours, pixels.alpha()]
    size = pixels.w(), pixels.h()
    samples = mupdf.fz_pixmap_samples_memoryview(pixels)
    made = Pillow.frombytes(mode, size, samples, "raw", mode, pixels.stride(), 1)
    if is_mask:
        return made.convert("L")
    if n_colours == 0:  # a stencil: what it covers is painted
        return Pillow.eval(made, lambda value: 255 - value)
    return on_white(made.convert(mode[:-1]), made.getchannel("A")) if pixels.alpha() else made
