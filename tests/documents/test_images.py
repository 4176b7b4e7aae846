import base64
import io
import struct
import zlib

import pytest
from figure_pdfs import as_bytes, picture
from kit.rows import check_rows
from PIL import Image

from kohaku_ray.documents.data.kohakurag import parse_kohakurag, write_kohakurag
from kohaku_ray.documents.figures import ImageSource, figures_named, images_of
from kohaku_ray.documents.images import BadImageError, SmallImageError, read_image
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.errors import DataError


def pixels(image):
    return Image.open(io.BytesIO(image.data))


def test_equal_pixels_are_one_file_whatever_the_source_says_of_itself():
    drawn = picture()
    stamped = as_bytes(drawn, "PNG", dpi=(300, 300), compress_level=9)
    first, second = read_image(as_bytes(drawn)), read_image(stamped)
    assert first == second
    assert pixels(first).tobytes() == drawn.tobytes()


@check_rows("kind", ["GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM"])
def test_formats(kind):
    assert pixels(read_image(as_bytes(picture(), kind))).size == (320, 240)


def test_transparency_is_white():
    drawn = Image.new("RGBA", (80, 80), (0, 0, 0, 0))
    assert pixels(read_image(as_bytes(drawn))).getpixel((5, 5)) == (255, 255, 255)
    indexed = Image.new("P", (80, 80), 3)
    indexed.putpalette([0, 0, 0] * 256)
    assert pixels(read_image(as_bytes(indexed, "PNG", transparency=3))).getpixel((5, 5)) == (255, 255, 255)


def test_sixteen_bits_and_cmyk():
    deep = Image.fromarray(__import__("numpy").full((80, 90), 0x8040, "uint16"))
    assert pixels(read_image(as_bytes(deep))).getpixel((0, 0)) == 0x80
    drawn = Image.new("CMYK", (80, 90), (0, 255, 255, 0))
    assert pixels(read_image(as_bytes(drawn, "TIFF"))).getpixel((0, 0)) == (255, 0, 0)


def test_a_photograph_is_turned_by_its_exif_orientation():
    drawn = Image.new("RGB", (200, 100), "white")
    drawn.paste((255, 0, 0), (0, 0, 100, 100))
    exif = Image.Exif()
    exif[0x112] = 6  # a quarter clockwise
    shown = pixels(read_image(as_bytes(drawn, "PNG", exif=exif)))
    assert shown.size == (100, 200)
    assert shown.getpixel((50, 20)) == (255, 0, 0)


def bomb(width, height):
    """A PNG whose head promises pixels that its body has not."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")


@check_rows(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML or XML, no image.*<!DOCTYPE"),
        (b"\n <html>", "HTML or XML"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG, which is not read: export it as PNG"),
        (b"%PDF-1.7 not an image", "no image in a format that is read"),
        (as_bytes(picture())[:300], "broken"),
        (bomb(11_000, 10_000), "110,000,000|11,000 × 10,000 pixels, at most 100,000,000"),
        (bomb(60_000, 60_000), "more than 100,000,000 pixels|60,000 × 60,000 pixels"),
    ],
)
def test_what_is_no_image_says_why(data, reason):
    with pytest.raises(BadImageError, match=reason):
        read_image(data)


def test_sixty_four_pixels_are_enough():
    assert read_image(as_bytes(picture((64, 64)))).width == 64
    with pytest.raises(SmallImageError, match="63 × 200 pixels, at least 64"):
        read_image(as_bytes(picture((63, 200))))


@check_rows(
    ("text", "numbers"),
    [
        ("As Figure 3 shows.", ["3"]),
        ("see fig. 2a and Fig. 12", ["2", "12"]),
        ("Figs. 2–4 and A.1 differ", ["2", "3", "4", "A.1"]),
        ("Figures 1, 2, and 5", ["1", "2", "5"]),
        ("Figure 3.2 in chapter 3", ["3.2"]),
        ("a configuration of 3", []),
        ("Figure it out in 3 days", []),
    ],
)
def test_figures_that_a_sentence_names(text, numbers):
    assert figures_named(text) == numbers


def tree(tmp_path, name, text, directory=None):
    """Parse a file beside which an image lies, and one outside its directory."""
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "a chart.png").write_bytes(as_bytes(picture(seed=1)))
    (folder / "sub" / "icon.png").write_bytes(as_bytes(picture((20, 20))))
    (folder / "page.png").write_bytes(b"<html>not found</html>")
    (tmp_path / "secret.png").write_bytes(as_bytes(picture(seed=2)))
    (folder / "link.png").unlink(missing_ok=True)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / name).write_text(text)
    source = ImageSource(directory)
    (document,) = parse_documents(str(folder / name), text.encode(), images=source).documents
    return document


URI = "data:image/png;base64," + base64.b64encode(as_bytes(picture(seed=3))).decode()

MARKDOWN = f"""# Energy

The plant uses energy, as Figure 1 shows.

![Figure 1: Energy per year](a%20chart.png)

![Again](./a%20chart.png)

![An icon](sub/icon.png)

![Remote](https://example.org/x.png)

![Outside](../secret.png)

![Link](link.png)

![Page](page.png)

![Missing](none.png)

![Inline]({URI})
"""


def test_images_of_markdown_stay_inside_its_directory(tmp_path):
    document = tree(tmp_path, "plant.md", MARKDOWN)
    (_, first, chart), (_, second, inline) = images_of(document)
    assert (first.text, second.text) == ("Figure 1: Energy per year", "Inline")
    assert pixels(chart).tobytes() == picture(seed=1).tobytes()
    assert pixels(inline).tobytes() == picture(seed=3).tobytes()
    assert chart.mentions == ("The plant uses energy, as Figure 1 shows.",)
    assert second.attachment.path == f"images/{inline.digest}.png"
    rejects = dict(document.image_rejects)
    assert sorted(rejects) == ["image ../secret.png", "image link.png", "image none.png", "image page.png"]
    assert "out of the document's directory" in rejects["image ../secret.png"]
    assert "a link that leads out" in rejects["image link.png"]
    assert "HTML" in rejects["image page.png"]
    assert "none.png cannot be read" in rejects["image none.png"]
    assert document.images_left_out == {"repeated": 1, "small": 1, "remote": 1}
    texts = [paragraph.text for section in document.sections for paragraph in section.paragraphs]
    assert {"Remote", "Outside", "Missing"} <= set(texts)  # a caption is text, whatever became of its image


def test_images_of_html_inside_markdown(tmp_path):
    text = """# Plant

<p align="center"><img src="a%20chart.png" width=40 alt="A  chart"></p>

A plant <img src='sub/icon.png'> uses energy. <!-- <img src="page.png"> -->
"""
    document = tree(tmp_path, "plant.md", text)
    ((_, paragraph, chart),) = images_of(document)
    assert paragraph.text == "A chart"
    assert pixels(chart).tobytes() == picture(seed=1).tobytes()
    assert (document.images_left_out, document.image_rejects) == ({"small": 1}, ())


HTML = f"""<html><body><h1>Energy</h1><p>The plant uses energy.</p>
<p>Text before <img src="a%20chart.png?v=2#top"> and after.</p>
<ul><li>An item <img src="{URI}" alt="In a list"></li></ul>
<figure><img src="sub/icon.png"><figcaption>Figure 2: small</figcaption></figure>
<img src="/etc/passwd"><img src="file:///etc/passwd"><img src="//host/x.png"><img>
</body></html>"""


def test_images_of_html(tmp_path):
    document = tree(tmp_path, "plant.html", HTML)
    (_, first, chart), (_, second, inline) = images_of(document)
    assert (first.text, second.text) == ("", "In a list")
    assert pixels(chart).tobytes() == picture(seed=1).tobytes()
    assert pixels(inline).tobytes() == picture(seed=3).tobytes()
    texts = [paragraph.text for section in document.sections for paragraph in section.paragraphs]
    assert texts == [
        "The plant uses energy.",
        "Text before and after.",
        "",
        "- An item",
        "In a list",
        "Figure 2: small",
    ]
    ((where, reason),) = document.image_rejects
    assert where == "image /etc/passwd"
    assert "out of the document's directory" in reason
    assert document.images_left_out == {"small": 1, "remote": 2}


PLACEHOLDERS = """{"document_id": "amazon", "title": "T", "sections": [{"title": "S", "paragraphs": [
 {"text": "A plant uses energy."},
 {"text": "[Image page=1 idx=1 name=Im0.png] Size: 9x9, Data: 9 bytes"},
 {"text": "[img:Fig1 9x9] A chart of energy", "metadata": {"attachment_type": "image", "image_path": "images/c.png"}},
 {"text": "[img:Fig2 9x9] Lost", "metadata": {"attachment_type": "image", "image_path": "lost.png"}},
 {"text": "[img:Fig3 9x9] Escaped", "metadata": {"attachment_type": "image", "image_path": "../../etc/x.png"}}]}]}"""


def test_placeholders_find_their_files(tmp_path):
    files = tmp_path / "files"
    (files / "amazon").mkdir(parents=True)
    (files / "amazon" / "Im0.png").write_bytes(as_bytes(picture(seed=4)))
    (files / "images").mkdir()
    (files / "images" / "c.png").write_bytes(as_bytes(picture(seed=5)))
    document = tree(tmp_path, "amazon.json", PLACEHOLDERS, str(files))
    (_, first, chart), (_, second, energy_chart) = images_of(document)
    assert (first.text, second.text) == ("", "A chart of energy")
    assert pixels(chart).tobytes() == picture(seed=4).tobytes()
    assert pixels(energy_chart).tobytes() == picture(seed=5).tobytes()
    assert [where for where, _ in document.image_rejects] == ["image lost.png", "image ../../etc/x.png"]
    assert "no file lost.png or amazon/lost.png in documents.images" in document.image_rejects[0][1]
    bare = tree(tmp_path, "amazon.json", PLACEHOLDERS)
    assert not images_of(bare)
    assert bare.images_left_out == {"without a file": 4}


def test_a_tree_with_images_is_written_and_read_again(tmp_path):
    document = tree(tmp_path, "plant.md", MARKDOWN)
    again = parse_kohakurag("plant.json", write_kohakurag(document).encode())
    assert [p.text for s in again.sections for p in s.paragraphs] == [
        p.text for s in document.sections for p in s.paragraphs
    ]
    paths = [p.attachment.path for s in again.sections for p in s.paragraphs if p.attachment]
    assert paths[0].startswith("images/")


def test_a_document_is_kept_when_its_images_take_too_long(tmp_path, monkeypatch):
    from kohaku_ray.documents import figures as attached

    def spin(data):
        while True:
            pass

    monkeypatch.setattr(attached, "read_image", spin)
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.png").write_bytes(as_bytes(picture()))
    text = b"A text that is kept.\n\n![A chart](a.png)\n"
    (document,) = parse_documents(str(folder / "x.md"), text, 0.3, images=ImageSource()).documents
    ((where, reason),) = document.image_rejects
    assert where == "all images"
    assert "not parsed after 0.3 s" in reason
    assert document.sections[0].paragraphs[0].text == "A text that is kept."


def test_addresses_stay_inside_a_directory_on_an_object_store():
    from kohaku_ray.documents.figures import attach_images
    from kohaku_ray.documents.markup.markdown import parse_markdown

    asked = []

    def read(path):
        asked.append(path)
        return as_bytes(picture())

    text = b"A plant.\n\n![In](img/a%20b.png) ![Out](../x.png) ![Far](img/../../y.png)\n"
    name = "s3://bucket/docs/x.md?region=eu"
    document = attach_images(parse_markdown(name, text, images=True), name, read, ImageSource())
    assert asked == ["s3://bucket/docs/img/a%20b.png?region=eu"]
    assert [where for where, _ in document.image_rejects] == ["image ../x.png", "image img/../../y.png"]


def test_a_file_that_is_no_document_is_still_a_reject():
    with pytest.raises(DataError, match="empty"):
        parse_documents("x.md", b"", images=ImageSource())
