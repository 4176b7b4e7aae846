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
from kohaku_ray.documents.pdf_blocks import caption_gap, is_inside
from kohaku_ray.documents.pdf_page import CAPTION, Line, Page, Picture, around

CELL_POINTS = 8.0  # strokes in the same square of this side, or in adjacent ones, are one drawing
MIN_STROKES = 3  # fewest strokes of a figure; fewer are a frame or a rule
MIN_POINTS = 40.0  # shortest side of a figure
MAX_SHARE = 0.8  # largest share of a page that a stroke or a figure covers; a larger one is the background
RASTER_SHARE = 0.6  # an embedded image on a larger share of a drawing is the figure, and the strokes are its frame
LABEL_POINTS = 16.0  # largest distance of an axis label from its drawing
LABEL_CHARS = 60  # longest axis label


def drawn_figures(page: Page) -> list[Box]:
    """Find the vector figures of a page that is not turned: places, axis labels included, from top to bottom."""
    captions = []
    for line in page.lines:
        match = CAPTION.match(line.text) if line.kind == "text" else None
        if match is not None and match["kind"].lower().startswith("f"):
            captions.append(line)
    free = [line for line in captions if not any(caption_gap(box, line.box) is not None for box in page.images)]
    inside = [line for line in captions if line not in free]
    if not captions or not page.strokes:
        return []
    drawings = [box for box in _clusters(page) if not any(_share(box, table) > 0.5 for table, _ in page.grids)]
    drawings = [_with_labels(box, page.lines) for box in drawings]
    figures = []
    for caption in [*free, *inside]:
        near = [(gap, box) for box in drawings if (gap := caption_gap(box, caption.box)) is not None]
        if not near:
            continue
        # the caption of a figure is usually below it
        box = min(near, key=lambda gap_and_box: (gap_and_box[1][1] > caption.y0, gap_and_box[0]))[1]
        parts = [image for image in page.images if _share(image, box) > 0.5]
        if caption in inside and not parts:
            continue  # its figure is an embedded image
        if any(_area(image) > RASTER_SHARE * _area(box) for image in parts):
            continue
        page.images = [image for image in page.images if image not in parts]
        drawings.remove(box)
        figures.append(box)
    return sorted(figures, key=lambda box: (box[1], box[0]))


def _clusters(page: Page) -> list[Box]:
    """Boxes round strokes that touch, of a figure's size."""
    import numpy as np
    from scipy.ndimage import label

    area = page.width * page.height
    shown = [
        (max(x0, 0.0), max(y0, 0.0), min(x1, page.width), min(y1, page.height))
        for x0, y0, x1, y1 in page.strokes
        if (x1 - x0) * (y1 - y0) <= MAX_SHARE * area
    ]
    strokes = np.array([box for box in shown if box[0] <= box[2] and box[1] <= box[3]], np.float64)
    if len(strokes) < MIN_STROKES:
        return []
    cells = (strokes // CELL_POINTS).astype(np.int64)
    n_x, n_y = (cells[:, 2:].max(axis=0) + 1).tolist()
    covered = np.zeros((n_y, n_x), bool)
    for left, top, right, bottom in np.unique(cells, axis=0).tolist():
        covered[top : bottom + 1, left : right + 1] = True
    labels, _ = label(covered, np.ones((3, 3)))  # corners connect as well
    labels_of_strokes = labels[cells[:, 1], cells[:, 0]]
    drawings = []
    for number in np.unique(labels_of_strokes).tolist():
        members = strokes[labels_of_strokes == number]
        x0, y0 = members[:, :2].min(axis=0).tolist()
        x1, y1 = members[:, 2:].max(axis=0).tolist()
        is_large = min(x1 - x0, y1 - y0) >= MIN_POINTS
        if len(members) >= MIN_STROKES and is_large and (x1 - x0) * (y1 - y0) <= MAX_SHARE * area:
            drawings.append((x0, y0, x1, y1))
    return drawings


def _with_labels(box: Box, lines: Sequence[Line]) -> Box:
    """Extend a drawing by the axis labels around it."""
    boxes = [box]
    for line in lines:
        is_label = len(line.text) <= LABEL_CHARS and CAPTION.match(line.text) is None
        if is_label and is_inside(line, box, LABEL_POINTS) and line.x1 - line.x0 <= box[2] - box[0]:
            boxes.append(line.box)
    return around(boxes)


def _area(box: Box) -> float:
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def _share(box: Box, other: Box) -> float:
    """Share of a box that another one covers."""
    common = max(box[0], other[0]), max(box[1], other[1]), min(box[2], other[2]), min(box[3], other[3])
    return _area(common) / max(_area(box), 1e-9)


FIGURE_DPI = 150  # resolution of vector figures
MIN_LOGO_PAGES = 3  # fewest pages of a logo
LOGO_SHARE = 0.5  # an image on a larger share of the pages is a logo
_BROKEN = ("truncated", "ignoring zlib error", "decode error", "premature end", "corrupt", "cannot decode")
"""What MuPDF warns of when it fills the rest of a broken image."""


class PdfImages:
    """Extracts the images of one open ``pymupdf.Document``, window by window."""

    def __init__(self, file: Any) -> None:
        self.left_out: Counter[str] = Counter()  # number of images left out, by reason
        self.rejects: list[tuple[str, str]] = []  # images that cannot be used: place and reason
        self._file = file
        self._pages: Counter[bytes] = Counter()
        self._n_pages = 0
        self._known: set[bytes] = set()

    def extract(self, window: Sequence[Page]) -> None:
        """Decode the images of the next pages; ``page.images`` keeps the places of those that are used.

        An image on most of the pages so far is a logo.
        """
        keys = {id(picture): _key(picture) for page in window for picture in page.pictures.values()}
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
            figures = [] if page.turn else drawn_figures(page)
            self._decode(page)
            for box in figures:
                self._draw(page, box)
            page.images.sort(key=lambda box: (box[1], box[0]))

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


def _drawn(page: Any, box: Box) -> Image | None:
    """Draw a part of a page; None: there is nothing to see. BadImageError: it cannot be drawn."""
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
