"""PDFs that nobody would want: each gives a document, or one message with the way out."""

import gc
import resource

import pymupdf
import pytest
from kit.growth import check_linear
from kit.trees import texts

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError


def pdf(*texts, **options):
    file = pymupdf.open()
    for text in texts:
        page = file.new_page()
        if text:
            page.insert_text((72, 100), text, fontsize=10)
    return file.tobytes(**options)


def assembled(objects):
    """The bytes of a PDF from its objects, the first of which is its catalog."""
    body, places = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj%s endobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in places)
    trailer = b"trailer<</Root 1 0 R/Size %d>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(body))
    return bytes(body) + b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + table + trailer


@pytest.mark.parametrize("junk", [b"\x00\x01\x02" * 50, b"%PDF-1.7\n%%EOF"])
def test_no_pdf_at_all(junk):
    with pytest.raises(
        DataError, match=rf"^d/x\.pdf is not a PDF, or damaged .* {len(junk)} bytes .*: fetch or export it"
    ):
        parse_file("d/x.pdf", junk)


def test_a_truncated_file(capfd):
    whole = pdf("The first page.", "The second page.")
    with pytest.raises(DataError, match=r"^x\.pdf is not a PDF, or damaged or truncated after 300 bytes"):
        parse_file("x.pdf", whole[:300])
    assert capfd.readouterr() == ("", "")


def test_an_encrypted_file():
    secret = {"encryption": pymupdf.PDF_ENCRYPT_AES_256, "owner_pw": "owner"}
    with pytest.raises(DataError, match=r"^x\.pdf is encrypted and needs a password: save a copy without one"):
        parse_file("x.pdf", pdf("A secret.", user_pw="user", **secret))
    assert texts(parse_file("x.pdf", pdf("No secret to read.", **secret))) == ["No secret to read."]


def test_a_file_without_pages():
    nothing = assembled([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[]/Count 0>>"])
    with pytest.raises(DataError, match=r"^x\.pdf has 0 pages: export the document again"):
        parse_file("x.pdf", nothing)


def test_a_scan():
    file = pymupdf.open()
    pixmap = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 60, 80))
    for _ in range(3):
        file.new_page().insert_image(pymupdf.Rect(0, 0, 595, 842), pixmap=pixmap)
    with pytest.raises(DataError, match=r"^x\.pdf has 3 pages but no text on any of them: it is a scan; run OCR on it"):
        parse_file("x.pdf", file.tobytes())


def test_one_page_of_text_is_enough_and_blank_pages_count():
    document = parse_file("x.pdf", pdf("", "", "At last a text."))
    (section,) = document.sections
    assert [(p.text, p.page) for p in section.paragraphs] == [("At last a text.", 3)]


def test_a_script_and_an_embedded_file_are_not_touched():
    file = pymupdf.open()
    file.new_page().insert_text((72, 100), "Ordinary text.")
    file.embfile_add("secret.txt", b"Embedded words.")
    action = file.get_new_xref()
    file.update_object(action, "<</S/JavaScript/JS(app.alert\\('run'\\))>>")
    file.xref_set_key(file.pdf_catalog(), "OpenAction", f"{action} 0 R")
    assert texts(parse_file("x.pdf", file.tobytes())) == ["Ordinary text."]


def test_text_from_right_to_left():
    file = pymupdf.open()
    file.new_page().insert_htmlbox(
        pymupdf.Rect(72, 72, 500, 300), "<p dir=rtl>המודל צרך 42 קילוואט שעה ביום.</p><p>Then English.</p>"
    )
    hebrew, english = texts(parse_file("x.pdf", file.tobytes()))
    assert " ".join(hebrew.split()) == "המודל צרך 42 קילוואט שעה ביום."
    assert english == "Then English."


def test_a_page_of_scattered_pieces_takes_no_quadratic_time():
    def scattered(n_rows: int) -> tuple[bytes, int]:
        file = pymupdf.open()
        page = file.new_page(width=3000, height=3000)
        words = [((x * 30 + y * 7) % 2900 + 20.0, y * 11.7 + 20 + x * 0.31) for y in range(n_rows) for x in range(80)]
        writer = pymupdf.TextWriter(page.rect)
        font = pymupdf.Font("helv")
        for point in words:
            writer.append(point, "ab", font=font, fontsize=6)
        writer.write_text(page)
        return file.tobytes(), len(words)

    def read(given: tuple[bytes, int]) -> None:
        data, n_words = given
        assert " ".join(texts(parse_file("x.pdf", data))).count("ab") == n_words

    check_linear(scattered, read, n=30)


def test_a_page_of_a_drawing_with_thousands_of_strokes():
    def drawing(n_strokes: int) -> bytes:
        file = pymupdf.open()
        page = file.new_page()
        page.insert_text((72, 60), "A map with its legend.")
        shape = page.new_shape()
        for i in range(n_strokes // 2):
            shape.draw_line((50 + i % 60 * 8, 80 + i // 60 * 14), (90 + i % 60 * 8, 80 + i // 60 * 14))
            shape.draw_line((50 + i % 60 * 8, 80 + i // 60 * 14), (50 + i % 60 * 8, 95 + i // 60 * 14))
        shape.finish()
        shape.commit()
        return file.tobytes()

    def read(data: bytes) -> None:
        assert texts(parse_file("x.pdf", data)) == ["A map with its legend."]

    check_linear(drawing, read, n=10_000)


def test_the_garbage_collector_is_on_again_and_pages_leave_it_nothing_to_do():
    whole = pdf("The first page.", "The second page.")
    parse_file("x.pdf", whole)
    gc.collect()
    with pytest.raises(DataError):
        parse_file("x.pdf", whole[:300])
    assert gc.isenabled()
    gc.disable()
    try:
        n_left = []
        for data in (whole, pdf(*["A page."] * 20)):
            parse_file("x.pdf", data)
            assert not gc.isenabled()
            n_left.append(gc.collect())  # PyMuPDF's get_toc leaves a few objects
        assert n_left[0] == n_left[1] < 20
    finally:
        gc.enable()


def test_every_prefix_of_a_file_gives_a_document_or_a_data_error(capfd):
    whole = pdf("The first page of text.", "The second page of text.")
    for end in range(1, len(whole), 37):
        try:
            document = parse_file("x.pdf", whole[:end])
        except DataError:
            continue
        assert "page of text." in " ".join(texts(document))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_2000_pages_take_linear_time_and_bounded_memory():
    def read(given: tuple[int, bytes]) -> None:
        n, data = given
        document = parse_file("x.pdf", data)
        paragraphs = texts(document)
        assert len(paragraphs) == n
        assert not any("A Very Long Report" in text for text in paragraphs)
        assert document.sections[0].paragraphs[-1].page == n

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_linear(long_report, read, n=500)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def long_report(n: int) -> tuple[int, bytes]:
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Times-Roman>>"]
    kids = []
    for number in range(n):
        kids.append(f"{len(objects) + 1} 0 R")
        lines = "".join(f"(Line {i} of page {number} holds a few words and goes on) Tj T* " for i in range(30))
        content = (
            f"BT /F 8 Tf 72 800 Td (A Very Long Report) Tj ET BT /F 8 Tf 290 30 Td ({number + 1}) Tj ET "
            f"BT /F 10 Tf 12 TL 72 740 Td {lines} ET"
        ).encode()
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 3 0 R>>>>"
            f"/Contents {len(objects) + 2} 0 R>>".encode()
        )
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(content), content))
    objects[1] = f"<</Type/Pages/Count {n}/Kids[{' '.join(kids)}]>>".encode()
    return n, assembled(objects)
