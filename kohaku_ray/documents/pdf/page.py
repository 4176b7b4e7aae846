"""Read one page of a PDF: its lines of text, pictures, rules, and tables with borders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, pairwise
from operator import itemgetter
from statistics import median_low
from typing import Any

from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.pdf.grids import find_grids
from kohaku_ray.documents.pdf.scripts import write_spans
from kohaku_ray.documents.pdf.unseen import is_over, may_be_struck, unseen_spans
from kohaku_ray.documents.text.content import clean_print
from kohaku_ray.documents.text.tables import Cells, is_number

MIN_IMAGE_POINTS = 30.0  # shortest side of a picture that is kept; smaller ones are icons and bullets
MAX_IMAGE_SHARE = 0.9  # largest share of a page with text that a picture may cover; a larger one is the background
MAX_IMAGES = 50  # most pictures kept of a page; more are the tiles of one picture and are all left out
_MANY_SPACES = "   "  # as many set the cells of a table apart
MIN_GAP, MIN_NUMBER_GAP = 0.9, 0.45  # least gap of two such cells, and of two numbers, in font sizes
MAX_FIELDS = 5000  # most fields of a page that are read; a form that people fill in has a few hundred
_TEXT, _IMAGE, _VECTOR = 0, 1, 3  # MuPDF's kinds of block


@dataclass(slots=True)
class TextLine:
    """Text on one line between two wide gaps, or a whole image or table, which is ordered with the lines; in points."""

    x0: float
    y0: float
    x1: float
    y1: float
    text: str  # for a table, one line per row
    size: float = 0.0  # font size of most of its text
    bold: bool = False  # whether most of its text is
    kind: str = "text"  # or ``image`` or ``table``
    words: Sequence[tuple[float, float]] = ()  # left and right of each of its words

    @property
    def box(self) -> Box:
        """Left, top, right, bottom."""
        return self.x0, self.y0, self.x1, self.y1


@dataclass(slots=True)
class Picture:
    """An embedded image where it is drawn."""

    image: Any  # ``pymupdf.mupdf.FzImage``, not decoded
    axes: tuple[float, float, float, float]  # its horizontal and its vertical axis on the page as it is read

    @property
    def axes_signs(self) -> tuple[bool, bool, bool]:
        """Whether it lies on its side, and then whether it is mirrored left to right, and top to bottom."""
        a, b, c, d = self.axes
        across = abs(b) + abs(c) > abs(a) + abs(d)
        return (True, c < 0, b < 0) if across else (False, a < 0, d < 0)


@dataclass(slots=True)
class Page:
    """What was read of a page."""

    number: int  # from 1
    width: float  # in points; of a page printed sideways, as its text is read
    height: float
    lines: list[TextLine]  # in the order they were drawn
    images: list[Box] = field(default_factory=list)  # where pictures are that may carry content, from top to bottom
    grids: list[tuple[Box, Cells, int]] = field(default_factory=list)
    """Bordered tables: place, rows of cells, which row names the columns, -1: none."""

    turn: int = 0  # 1 where the text runs upwards, 3 where it runs downwards
    pictures: dict[Box, Picture] = field(default_factory=dict)  # those of `images`, where they are extracted
    extracted: dict[Box, Image] = field(default_factory=dict)  # images by their place, as extracted
    left_out: Counter[str] = field(default_factory=Counter)  # number of images that carry no content, by reason
    is_turned: bool = False  # its text runs upwards or downwards, or a viewer turns the page
    is_pictured: bool = False  # it has no text, but a picture
    dropped: dict[str, list[str]] = field(default_factory=dict)  # texts that are not read, by what they are

    def on_paper(self, box: Box) -> Box:
        """A box on the page as it lies, rounded to a tenth of a point."""
        x0, y0, x1, y1 = box
        if self.turn == 1:
            x0, y0, x1, y1 = y0, self.width - x1, y1, self.width - x0
        elif self.turn == 3:
            x0, y0, x1, y1 = self.height - y1, x0, self.height - y0, x1
        return round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)


def read_page(page: Any, images: bool = False) -> Page:
    """Read a `pymupdf.Page`; its images are located, never decoded.

    With ``images``, which are extracted later, inline ones and those of a page printed sideways are located too.
    """
    import pymupdf

    # without PRESERVE_LIGATURES and PRESERVE_WHITESPACE MuPDF itself writes "fi" and plain spaces
    flags = pymupdf.TEXT_MEDIABOX_CLIP | pymupdf.TEXT_COLLECT_VECTORS
    lines, vectors = _lines_of(page.get_textpage(flags=flags))
    width, height = float(page.cropbox.width), float(page.cropbox.height)
    n_chars: Counter[int] = Counter()
    for line in lines:
        n_chars[_turn(line)] += sum(len(span["text"]) for span in line["spans"])
    turn = max(n_chars, key=n_chars.__getitem__, default=0)
    matrix = {0: (1, 0, 0, 1, 0, 0), 1: (0, 1, -1, 0, height, 0), 3: (0, -1, 1, 0, 0, width)}[turn]
    if turn:  # printed sideways: read it again as if it were turned
        width, height = height, width
        read_again = {"clip": (0, 0, width, height), "matrix": pymupdf.Matrix(*matrix)}
        lines, _ = _lines_of(page.get_textpage(flags=flags, **read_again))
        vectors = []  # they would have to be turned as well, and are rare there
    if may_be_struck(lines, vectors):
        lines, _ = _lines_of(page.get_textpage(flags=flags | pymupdf.TEXT_COLLECT_STYLES))
    has_pictures = bool(page.get_images())
    pictures: dict[Box, Picture] = {}
    if images or (has_pictures and not turn):
        pictures = _pictures(page.get_textpage((0, 0, width, height), pymupdf.TEXT_PRESERVE_IMAGES, matrix))
    read = Page(page.number + 1, width, height, [], turn=turn, is_turned=bool(turn or page.rotation))
    level = _seen_level(lines, list(pictures), vectors, read.dropped)
    read.lines = list(_split_cells(_written(level)))
    if page.first_widget is not None and not read.is_turned:
        read.lines = _with_fields(page, read.lines)
    read.is_pictured = has_pictures and not read.lines
    read.grids = find_grids(page, [vector["bbox"] for vector in vectors], [line["spans"] for line in level])
    _choose_images(read, list(pictures))
    if images:
        for _ in range(0 if read.lines else page.rotation // 90):
            for picture in pictures.values():  # a quarter clockwise each
                a, b, c, d = picture.axes
                picture.axes = -b, a, -d, c
        read.pictures = {box: pictures[box] for box in read.images}
    return read


def _seen_level(
    lines: Sequence[Mapping[str, Any]],
    pictures: Sequence[Box],
    vectors: Sequence[Mapping[str, Any]],
    dropped: dict[str, list[str]],
) -> list[Mapping[str, Any]]:
    """Lines of spans that are seen and run across the page; the texts of the others are put with what they are."""
    unseen = unseen_spans([span for line in lines for span in line["spans"]], pictures, vectors)
    level: list[Mapping[str, Any]] = []
    for line in lines:
        for span in line["spans"]:
            if id(span) in unseen:
                dropped.setdefault(unseen[id(span)], []).append(span["text"].strip())
        seen = [span for span in line["spans"] if id(span) not in unseen]
        text = clean_print("".join(span["text"] for span in seen)).strip() if _turn(line) else ""
        if text:  # it runs another way than the page's: labels of axes, stamps
            dropped.setdefault("upright text", []).append(text)
        elif seen and not _turn(line):
            level.append({**line, "spans": seen})
    return level


def _lines_of(textpage: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """MuPDF's lines, each with the left and right of its words, and what is drawn."""
    blocks = textpage.extractDICT()["blocks"]
    lines = [line for block in blocks if block["type"] == _TEXT for line in block["lines"] if line["spans"]]
    written = [line for line in lines if any(span["text"].strip() for span in line["spans"])]
    words = groupby(textpage.extractWORDS(), key=itemgetter(5, 6))  # line by line, in the same order
    for line, (_, group) in zip(written, words, strict=False):
        line["words"] = [(word[0], word[2]) for word in group]
    return lines, [block for block in blocks if block["type"] == _VECTOR]


def _turn(line: Mapping[str, Any]) -> int:
    """Which way a line runs: 0 across the page, 1 upwards, 3 downwards, as a margin stamp may."""
    x, y = line["dir"]
    return 0 if abs(x) >= abs(y) else 1 if y < 0 else 3


def _with_fields(page: Any, lines: Sequence[TextLine]) -> list[TextLine]:
    """Lines with what a form's boxes say: ticked, ``[x]``, or not, ``[ ]``; MuPDF writes all other values itself."""
    import pymupdf

    kinds = pymupdf.PDF_WIDGET_TYPE_CHECKBOX, pymupdf.PDF_WIDGET_TYPE_RADIOBUTTON
    # in the page's own size: a value may be set as large as its field, and is no heading
    size = median_low([line.size for line in lines] or [10.0])
    written = list(lines)
    for widget in islice(page.widgets(), MAX_FIELDS):
        box = (widget.rect.x0, widget.rect.y0, widget.rect.x1, widget.rect.y1)
        inside = [line for line in written if is_over(line.box, box, 2.0)]
        for line in inside:
            line.size = size
            if widget.field_type in kinds:
                line.text = ""
        if widget.field_type in kinds:
            written.append(TextLine(*box, "[x]" if widget.field_value == widget.on_state() else "[ ]", size))
    return [line for line in written if line.text]


def _split_cells(lines: Iterable[TextLine]) -> Iterator[TextLine]:
    """Cut lines whose words are the cells of a row: set apart by many spaces, or numbers apart by more than a space."""
    for line in lines:
        texts = line.text.split()
        is_row = len(texts) > 1 and all(map(is_number, texts))
        if len(line.words) != len(texts) or not (is_row or _MANY_SPACES in line.text):
            yield line
            continue
        least = (MIN_NUMBER_GAP if is_row else MIN_GAP) * line.size
        starts = [i for i, (last, word) in enumerate(pairwise(line.words), 1) if word[0] - last[1] > least]
        for first, end in pairwise([0, *starts, len(texts)]):
            words = line.words[first:end]
            yield replace(line, x0=words[0][0], x1=words[-1][1], text=" ".join(texts[first:end]), words=words)


def _written(lines: Sequence[Mapping[str, Any]]) -> Iterator[TextLine]:
    """Write MuPDF's lines, in the order they were drawn."""
    for line in lines:
        text, size, bold = write_spans(line["spans"])
        if text.strip():
            box = around([span["bbox"] for span in line["spans"]])
            yield TextLine(*box, text.strip(), size, bold, words=line.get("words", ()))


def around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that holds all the others."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def _pictures(textpage: Any) -> dict[Box, Picture]:
    """The embedded images of a page by their places."""
    pictures = {}
    for block in textpage.this:
        if block.m_internal.type == _IMAGE:
            box, to_page = block.m_internal.bbox, block.i_transform()
            axes = to_page.a, to_page.b, to_page.c, to_page.d
            pictures[box.x0, box.y0, box.x1, box.y1] = Picture(block.i_image(), axes)
    return pictures


def _choose_images(page: Page, boxes: Sequence[Box]) -> None:
    """Note those pictures that may carry content, and count the others."""
    area = page.width * page.height
    large = [box for box in boxes if min(box[2] - box[0], box[3] - box[1]) >= MIN_IMAGE_POINTS]
    kept = [box for box in large if not page.lines or (box[2] - box[0]) * (box[3] - box[1]) <= MAX_IMAGE_SHARE * area]
    is_tiled = len(kept) > MAX_IMAGES
    page.images = [] if is_tiled else sorted(kept, key=lambda box: (box[1], box[0]))
    n_rest = len(large) - len(page.images)
    page.left_out = +Counter({"small": len(boxes) - len(large), "tile" if is_tiled else "background": n_rest})
