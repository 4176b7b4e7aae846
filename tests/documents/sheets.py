"""PDFs that tests draw: text and rules put where the test says, and what is read of them."""

import pymupdf
from kit.trees import texts

from kohaku_ray.documents.parse import parse_file

SERIF, SERIF_BOLD, BOLD = "tiro", "tibo", "hebo"


def width_of(text, size=10, font="helv"):
    return pymupdf.get_text_length(text, fontname=font, fontsize=size)


class Sheet:
    """A PDF in the making, with a first page; ``page`` is the last one, for what only one test draws."""

    def __init__(self, width=595, height=842, font="helv", size=10, step=None):
        self.file = pymupdf.open()
        self.page_size = {"width": width, "height": height}
        self.font, self.size, self.step = font, size, step
        self.add_page()

    def add_page(self):
        self.page = self.file.new_page(**self.page_size)

    def put(self, x, y, *lines, size=None, step=None, font=None, **options):
        """Set lines from a baseline downwards, each ``step`` points below the last; return the baseline after them."""
        size = size or self.size
        for line in lines:
            self.page.insert_text((x, y), line, fontname=font or self.font, fontsize=size, **options)
            y += step or self.step or 1.2 * size
        return y

    def row(self, y, *cells, xs=(76, 204, 304), **options):
        for x, cell in zip(xs, cells, strict=False):
            self.put(x, y, cell, **options)

    def level(self, *heights, left=72, right=420):
        """Draw rules from left to right."""
        for y in heights:
            self.page.draw_line((left, y), (right, y))

    def upright(self, *places, top, bottom):
        for x in places:
            self.page.draw_line((x, top), (x, bottom))

    def parse(self, name="docs/made.pdf", **metadata):
        if metadata:
            self.file.set_metadata(metadata)
        return parse_file(name, self.file.tobytes())

    def texts(self):
        """The paragraphs' texts."""
        return texts(self.parse())

    def tables(self):
        """The rows of each table, and all other paragraphs."""
        paragraphs = [paragraph for section in self.parse().sections for paragraph in section.paragraphs]
        tables = [p.text.split("\n") for p in paragraphs if p.attachment is not None]
        return tables, [p.text for p in paragraphs if p.attachment is None]
