import io
import zlib

import pymupdf
import pytest
from figure_pdfs import as_bytes, inline_image, one_page, paper, picture, raw_image, write
from PIL import Image

from kohaku_ray.documents.figures import ImageSource, images_of
from kohaku_ray.documents.parse import parse_documents, parse_file

BOX = (100, 200, 260, 320)


def document(data, **options):
    (parsed,) = parse_documents("paper.pdf", data, images=ImageSource(), **options).documents
    return parsed


def only(data):
    """The only image of a PDF, as a paragraph, its record and its pixels."""
    pdf = document(data)
    assert not pdf.image_rejects
    ((_, paragraph, image),) = images_of(pdf)
    return paragraph, image, Image.open(io.BytesIO(image.data))


def near(pixels, point, colour, tolerance=12):
    return max(abs(a - b) for a, b in zip(pixels.convert("RGB").getpixel(point), colour, strict=True)) <= tolerance


def inserted(image, **options):
    return one_page(lambda file, page: page.insert_image(pymupdf.Rect(*BOX), stream=image, **options))


def raw(stream, header):
    return one_page(lambda file, page: raw_image(file, page, BOX, stream, header))


def test_without_images_the_document_is_as_ever():
    data = inserted(as_bytes(picture()))
    plain = parse_file("paper.pdf", data)
    (attachment,) = [p.attachment for s in plain.sections for p in s.paragraphs if p.attachment]
    assert (attachment.path, attachment.image) == ("p1-img1", None)
    assert (plain.image_rejects, plain.images_left_out) == ((), {})


def test_an_image_keeps_its_pixels_its_page_and_its_place():
    original = picture((320, 240), 3)
    paragraph, image, pixels = only(inserted(as_bytes(original)))
    assert (image.width, image.height, pixels.mode) == (320, 240, "RGB")
    assert pixels.tobytes() == original.tobytes()
    assert paragraph.attachment.path == f"images/{image.digest}.png"
    assert len(image.digest) == 32
    assert (paragraph.page, paragraph.bbox) == (1, BOX)


def test_a_soft_mask_is_transparency_over_white():
    drawn = Image.new("RGBA", (200, 100), (255, 0, 0, 255))
    drawn.paste((255, 0, 0, 0), (100, 0, 200, 100))
    drawn.paste((0, 0, 255, 128), (0, 50, 100, 100))
    _, _, pixels = only(inserted(as_bytes(drawn)))
    assert near(pixels, (50, 20), (255, 0, 0))
    assert near(pixels, (150, 50), (255, 255, 255))
    assert near(pixels, (50, 80), (127, 127, 255))


def test_a_stencil_mask_is_transparency_over_white():
    def draw(file, page):
        mask = file.get_new_xref()
        file.update_object(mask, "<<>>")
        file.update_stream(mask, zlib.compress((b"\x00" * 12 + b"\xff" * 13) * 100), new=True, compress=False)
        for key, value in {
            "Type": "/XObject",
            "Subtype": "/Image",
            "ImageMask": "true",
            "Filter": "/FlateDecode",
        }.items():
            file.xref_set_key(mask, key, value)
        for key, value in {"Width": 200, "Height": 100, "BitsPerComponent": 1}.items():
            file.xref_set_key(mask, key, str(value))
        stream = zlib.compress(bytes((200, 0, 0)) * 20_000)
        header = "/Width 200/Height 100/BitsPerComponent 8/Filter/FlateDecode/ColorSpace/DeviceRGB"
        xref = raw_image(file, page, BOX, stream, header)
        file.xref_set_key(xref, "Mask", f"{mask} 0 R")

    data = one_page(draw)
    with pymupdf.open(stream=data) as file:  # what a viewer shows
        shown = file[0].get_pixmap()
        assert (shown.pixel(120, 250), shown.pixel(240, 250)) == ((200, 0, 0), (255, 255, 255))
    _, _, pixels = only(data)
    assert near(pixels, (50, 50), (200, 0, 0))
    assert near(pixels, (150, 50), (255, 255, 255))


def test_cmyk_becomes_rgb():
    drawn = Image.new("CMYK", (200, 100), (0, 0, 0, 0))
    drawn.paste((0, 255, 255, 0), (0, 0, 100, 100))
    _, _, pixels = only(inserted(as_bytes(drawn, "JPEG", quality=95)))
    assert pixels.mode == "RGB"
    assert near(pixels, (150, 50), (255, 255, 255))
    red, green, blue = pixels.getpixel((50, 50))
    assert red > 200
    assert max(green, blue) < 80


@pytest.mark.parametrize(
    ("rows", "header", "left", "right"),
    [
        ([0] * 100 + [1] * 100, "8/ColorSpace[/Indexed/DeviceRGB 1<00FF00FF00FF>]", (0, 255, 0), (255, 0, 255)),
        ([255] * 100 + [0] * 100, "8/ColorSpace/DeviceGray/Decode[1 0]", (0, 0, 0), (255, 255, 255)),
        ([255] * 12 + [0] * 13, "1/ImageMask true", (255, 255, 255), (0, 0, 0)),
    ],
    ids=["indexed colours", "inverted grey", "a stencil, black where it paints"],
)
def test_pixels_are_read_as_a_viewer_shows_them(rows, header, left, right):
    stream = zlib.compress(bytes(rows) * 100)
    _, _, pixels = only(raw(stream, f"/Width 200/Height 100/Filter/FlateDecode/BitsPerComponent {header}"))
    assert near(pixels, (50, 50), left)
    assert near(pixels, (150, 50), right)


def test_jpeg_2000_is_read():
    stream = as_bytes(Image.new("RGB", (200, 100), (10, 200, 30)), "JPEG2000")
    _, _, pixels = only(raw(stream, "/Width 200/Height 100/BitsPerComponent 8/Filter/JPXDecode/ColorSpace/DeviceRGB"))
    assert near(pixels, (50, 50), (10, 200, 30))


def test_an_inline_image_is_read():
    drawn = picture((80, 70), 5)
    data = one_page(lambda file, page: inline_image(file, page, BOX, drawn.tobytes(), 80, 70))
    with pymupdf.open(stream=data) as file:
        assert not file[0].get_images()
    _, image, pixels = only(data)
    assert (image.width, image.height) == (80, 70)
    assert pixels.tobytes() == drawn.tobytes()


@pytest.mark.parametrize("turn", [90, 270])
def test_on_a_rotated_page_an_image_stands_as_it_is_seen(turn):
    drawn = Image.new("RGB", (200, 100), "white")
    drawn.paste((255, 0, 0), (0, 0, 100, 50))  # the upper left is red

    def draw(file, page):
        page.set_rotation(turn)
        box = pymupdf.Rect(200, 300, 400, 400) * page.derotation_matrix
        page.insert_image(box, stream=as_bytes(drawn), rotate=turn)
        for line in range(5):
            point = pymupdf.Point(100, 100 + 20 * line) * page.derotation_matrix
            page.insert_text(point, "A page that is printed sideways and seen upright.", rotate=turn)

    data = one_page(draw, text="")
    with pymupdf.open(stream=data) as file:  # what a viewer shows
        shown = file[0].get_pixmap()
        assert shown.pixel(210, 310) == (255, 0, 0)
        assert shown.pixel(390, 390) == (255, 255, 255)
    _, image, pixels = only(data)
    assert (image.width, image.height) == (200, 100)
    assert near(pixels, (20, 20), (255, 0, 0))
    assert near(pixels, (180, 80), (255, 255, 255))


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
def test_an_image_stands_as_it_is_drawn(turn, mirrored):
    drawn = Image.new("RGB", (200, 100), "white")
    for corner, colour in (((0, 0), "red"), ((100, 0), "lime"), ((0, 50), "blue")):
        drawn.paste(colour, (*corner, corner[0] + 100, corner[1] + 50))
    box = BOX if turn % 180 == 0 else (100, 200, 220, 360)

    def draw(file, page):
        page.insert_image(pymupdf.Rect(*box), stream=as_bytes(drawn), rotate=turn, keep_proportion=False)
        if mirrored:
            page.clean_contents()
            contents = page.get_contents()[0]
            flip = f"q -1 0 0 1 {box[0] + box[2]} 0 cm ".encode()
            file.update_stream(contents, flip + file.xref_stream(contents) + b" Q")

    data = one_page(draw)
    with pymupdf.open(stream=data) as file:  # what a viewer shows
        shown = file[0].get_pixmap(clip=box)
    _, image, pixels = only(data)
    for x, y in ((0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)):
        expected = shown.pixel(int(x * shown.width), int(y * shown.height))
        assert near(pixels, (int(x * image.width), int(y * image.height)), expected), (x, y)


def pages(n, draw):
    with pymupdf.open() as file:
        for index in range(n):
            page = file.new_page()
            write(
                page, (50, 100, 545, 200), f"Page {index} says that energy is measured at site {index}. It has a logo."
            )
            draw(page, index)
        return file.tobytes()


@pytest.mark.parametrize(
    ("shown_on", "kept", "left_out"),
    [(range(10), None, {"logo": 10}), ((2, 5, 7), 3, {"repeated": 2})],
    ids=["a logo", "a repeated figure"],
)
def test_an_image_on_several_pages_is_kept_once_and_a_logo_not_at_all(shown_on, kept, left_out):
    repeated, figure = as_bytes(picture(seed=1)), as_bytes(picture(seed=2))

    def draw(page, index):
        if index in shown_on:
            page.insert_image(pymupdf.Rect(450, 20, 530, 80), stream=repeated)
        if index == 4:
            page.insert_image(pymupdf.Rect(*BOX), stream=figure)

    pdf = document(pages(10, draw))
    assert [paragraph.page for _, paragraph, _ in images_of(pdf)] == ([kept] if kept else []) + [5]
    assert pdf.images_left_out == left_out


def test_small_images_are_left_out_and_counted():
    def draw(file, page):
        page.insert_image(pymupdf.Rect(*BOX), stream=as_bytes(picture((63, 200))))  # few pixels, drawn large
        page.insert_image(pymupdf.Rect(300, 200, 320, 220), stream=as_bytes(picture((200, 200))))  # drawn small

    pdf = document(one_page(draw))
    assert not images_of(pdf)
    assert pdf.images_left_out == {"small": 2}


def test_an_embedded_image_in_a_frame_stays_as_it_is():
    def draw(file, page):
        box = pymupdf.Rect(150, 200, 400, 350)
        page.insert_image(box, stream=as_bytes(picture((500, 300), 7)))
        for grown in (1, 3, 5):
            page.draw_rect(pymupdf.Rect(box.x0 - grown, box.y0 - grown, box.x1 + grown, box.y1 + grown))
        write(page, (150, 365, 400, 390), "Figure 1: A framed picture.")

    _, image, _ = only(one_page(draw))
    assert (image.width, image.height) == (500, 300)


def test_a_two_column_paper_has_its_figures_in_reading_order():
    pdf = document(paper(2))
    shown = [(paragraph.page, paragraph.text[:8]) for _, paragraph, _ in images_of(pdf)]
    first = [(1, "Figure 1"), (1, "Fig. 2: "), (1, "Figure 3")]
    assert shown == [*first, (2, "Figure 4"), (2, "Fig. 5: "), (2, "Figure 6")]
    images = [image for _, _, image in images_of(pdf)]
    assert images[0].caption == "Figure 1: Energy per site, in kWh."
    assert images[0].mentions == ("As Figure 1 shows, sites differ.",)
    assert images[1].mentions == ("Power rises in Fig. 2.", "Figures 2 and 3 agree.")
    assert images[2].mentions == ("Figures 2 and 3 agree.",)


@pytest.mark.parametrize("keep", [0.1, 0.6])
@pytest.mark.parametrize("kind", ["flate", "jpeg"])
def test_a_broken_stream_is_a_reject_of_its_own(kind, keep):
    drawn = picture((300, 200), 3)
    if kind == "flate":
        stream, header = zlib.compress(drawn.tobytes()), "/Filter/FlateDecode"
    else:
        stream, header = as_bytes(drawn, "JPEG"), "/Filter/DCTDecode"
    header += "/Width 300/Height 200/BitsPerComponent 8/ColorSpace/DeviceRGB"
    pdf = document(raw(stream[: int(keep * len(stream))], header), timeout_s=60)
    ((where, reason),) = pdf.image_rejects
    assert where == "page 1, image 1"
    assert "broken" in reason
    assert not images_of(pdf)
    assert pdf.sections[0].paragraphs[0].sentences


def test_a_hundred_megapixels_are_not_decoded():
    stream = zlib.compress(b"\0" * 1000)
    header = "/Width 20000/Height 20000/BitsPerComponent 8/Filter/FlateDecode/ColorSpace/DeviceRGB"
    pdf = document(raw(stream, header))
    ((_, reason),) = pdf.image_rejects
    assert "20,000 × 20,000 pixels, at most 100,000,000 are allowed" in reason


def test_images_come_whole_out_of_the_child():
    data = paper()
    assert document(data, timeout_s=60) == document(data)
    assert len(images_of(document(data, timeout_s=60))) == 3
