"""PDFs and image files with figures, made in the tests."""

from __future__ import annotations

import io
import random
import re

import pymupdf
from PIL import Image, ImageDraw

WORDS = re.findall(
    r"\w+",
    "the energy of a training run depends on hardware utilisation cooling power and the length of the schedule while "
    "measured values vary between sites and reports give little detail about methods",
)


def picture(size=(320, 240), seed=0, mode="RGB") -> Image.Image:
    """A picture that compresses, unlike noise, and differs by seed."""
    drawn = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(drawn)
    chance = random.Random(seed)
    for _ in range(12):
        x, y = chance.randrange(size[0]), chance.randrange(size[1])
        colour = tuple(chance.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + size[0] // 4, y + size[1] // 4), fill=colour)
    return drawn.convert(mode)


def as_bytes(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def prose(n_words: int, seed: int = 0) -> str:
    chance = random.Random(seed)
    sentences = []
    while n_words > 0:
        n = chance.randrange(8, 20)
        sentences.append(" ".join(chance.choice(WORDS) for _ in range(n)).capitalize() + ".")
        n_words -= n
    return " ".join(sentences)


def write(page, box, text, size=10.0):
    left = page.insert_textbox(pymupdf.Rect(*box), text, fontsize=size)
    assert left >= 0, "the text does not fit"


def one_page(draw, text="A report on energy. It has one page and one figure, and says so in two sentences.") -> bytes:
    """A page of text on which `draw(file, page)` draws."""
    with pymupdf.open() as file:
        page = file.new_page()
        write(page, (50, 40, 545, 140), text)
        draw(file, page)
        return file.tobytes()


def scan(*pictures: bytes, size=(595, 842)) -> bytes:
    """A PDF whose pages are filled by one picture each."""
    with pymupdf.open() as file:
        for picture in pictures:
            file.new_page(width=size[0], height=size[1]).insert_image(pymupdf.Rect(0, 0, *size), stream=picture)
        return file.tobytes()


def raw_image(file, page, box, stream: bytes, header: str, name="Raw") -> int:
    """Put an image XObject with its own header on a page; `stream` is stored as it is."""
    xref = file.get_new_xref()
    file.update_object(xref, "<<>>")
    file.update_stream(xref, stream, new=True, compress=False)
    for key, value in re.findall(r"/(\w+)\s*((?:/\w+)|\[[^\]]*\]|true|\d+)", f"/Type/XObject/Subtype/Image{header}"):
        file.xref_set_key(xref, key, value)
    page.clean_contents()
    file.xref_set_key(page.xref, f"Resources/XObject/{name}", f"{xref} 0 R")
    x0, y0, x1, y1 = box
    height = page.rect.height
    command = f"\nq {x1 - x0} 0 0 {y1 - y0} {x0} {height - y1} cm /{name} Do Q\n".encode()
    contents = page.get_contents()[0]
    file.update_stream(contents, file.xref_stream(contents) + command)
    return xref


def inline_image(file, page, box, pixels: bytes, width: int, height: int) -> None:
    """Draw an image whose bytes stand in the page's own commands."""
    page.clean_contents()
    x0, y0, x1, y1 = box
    head = f"\nq {x1 - x0} 0 0 {y1 - y0} {x0} {page.rect.height - y1} cm "
    head += f"BI /W {width} /H {height} /CS /RGB /BPC 8 /F /AHx ID "
    contents = page.get_contents()[0]
    file.update_stream(contents, file.xref_stream(contents) + head.encode() + pixels.hex().encode() + b">\nEI Q\n")


def paper(n_pages=1, columns=2, seed=0) -> bytes:
    """A two-column paper; each page has three figures with captions, and mentions them."""
    with pymupdf.open() as file:
        number = 0
        for index in range(n_pages):
            page = file.new_page()
            write(page, (50, 30, 545, 70), "Measured energy of training runs" if not index else f"Part {index + 1}", 16)
            for column in range(columns):
                x0, x1 = (50, 290) if column == 0 else (305, 545)
                if column == 0:
                    write(page, (x0, 80, x1, 330), prose(95, seed + index), 9.5)
                    number += 1
                    page.insert_image(pymupdf.Rect(x0, 340, x1, 500), stream=as_bytes(picture(seed=seed + number)))
                    write(page, (x0, 505, x1, 535), f"Figure {number}: Energy per site, in kWh.", 8)
                    write(
                        page, (x0, 545, x1, 770), f"As Figure {number} shows, sites differ. " + prose(70, seed + 7), 9.5
                    )
                else:
                    number += 1
                    box = pymupdf.Rect(x0 + 20, 90, x1, 220)
                    page.insert_image(box, stream=as_bytes(picture((450, 260), seed + number)))
                    write(page, (x0, 240, x1, 270), f"Fig. {number}: Power by quarter, in MW.", 8)
                    write(page, (x0, 280, x1, 480), f"Power rises in Fig. {number}. " + prose(60, seed + 3), 9.5)
                    number += 1
                    page.insert_image(
                        pymupdf.Rect(x0, 500, x1, 640), stream=as_bytes(picture(seed=seed + number), "JPEG", quality=90)
                    )
                    write(page, (x0, 645, x1, 675), f"Figure {number}: Cooling load.", 8)
                    write(page, (x0, 685, x1, 770), f"Figures {number - 1} and {number} agree. " + prose(10, seed), 9.5)
        return file.tobytes()
