"""Images of a PDF: embedded ones decoded once each, vector figures drawn."""

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
from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.pdf_drawings import drawn_figures
from kohaku_ray.documents.pdf_page import Page
from kohaku_ray.documents.pdf_pictures import Picture

FIGURE_DPI = 150
"""Resolution of vector figures."""

MIN_LOGO_PAGES = 3
"""Fewest pages of a logo."""

LOGO_SHARE = 0.5
"""An image on a larger share of the pages is a logo."""

_BROKEN = ("truncated", "ignoring zlib error", "decode error", "premature end", "corrupt", "cannot decode")
"""What MuPDF warns of when it fills the rest of a broken image."""


class PdfImages:
    """Extracts the images of one file, window by window.

    Attributes:
        left_out: Number of images left out, by reason.
        rejects: Per image that cannot be used, its place and the reason.
    """

    def __init__(self, file: Any) -> None:
        """Extract from an open ``pymupdf.Document``."""
        self.left_out: Counter[str] = Counter()
        self.rejects: list[tuple[str, str]] = []
        self._file = file
        self._pages: Counter[bytes] = Counter()
        self._n_pages = 0
        self._known: set[bytes] = set()

    def extract(self, window: Sequence[Page]) -> None:
        """Decode the images of some pages; ``page.images`` keeps the places of those that are used.

        Args:
            window: The pages after those of the last call. An image on most of the pages so far is a logo.
        """
        keys = {id(picture): _key(picture) for page in window for picture in page.pictures.values()}
        self._n_pages += len(window)
        for page in window:
            self._pages.update({keys[id(picture)] for picture in page.pictures.values()})
            self.left_out.update(page.left_out)
        for page in window:
            self._drop_repeated(page, keys)
            figures = [] if page.turn else drawn_figures(page)
            self._decode(page)
            for box in figures:
                self._draw(page, box)
            page.images.sort(key=lambda box: (box[1], box[0]))

    def _drop_repeated(self, page: Page, keys: dict[int, bytes]) -> None:
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

    def _draw(self, page: Page, box: Box) -> None:
        try:
            image = _drawn(self._file.load_page(page.number - 1), box)
        except BadImageError as error:
            self.rejects.append((f"page {page.number}, drawing at {box[0]:.0f}, {box[1]:.0f}", str(error)))
            return
        if image is not None:
            page.images.append(box)
            page.extracted[box] = image


def _key(picture: Picture) -> bytes:
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
    """Decode an embedded image as it is seen on the page.

    Raises:
        BadImageError: It is too large, too small, or its stream is broken.
    """
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
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase) as error:
        raise BadImageError(f"broken ({str(error)[:120]})") from None
    warned = pymupdf.TOOLS.mupdf_warnings()
    if any(said in warned for said in _BROKEN):
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


def _drawn(page: Any, box: Box) -> Image | None:
    """Draw a part of a page; None: there is nothing to see.

    Raises:
        BadImageError: It cannot be drawn.
    """
    import pymupdf
    from PIL import Image as Pillow

    page.set_rotation(0)  # boxes are those of the page as it lies
    check_pixels(*(round(side * FIGURE_DPI / 72) for side in (box[2] - box[0], box[3] - box[1])))
    try:
        pixels = page.get_pixmap(dpi=FIGURE_DPI, clip=pymupdf.Rect(*box), alpha=False, annots=False)
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase) as error:
        raise BadImageError(f"cannot be drawn ({str(error)[:120]})") from None
    drawn = Pillow.frombuffer("RGB", (pixels.width, pixels.height), pixels.samples_mv, "raw", "RGB", pixels.stride, 1)
    if drawn.getcolors(1):
        return None
    return as_image(drawn)
