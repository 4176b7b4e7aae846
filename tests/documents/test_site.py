"""Blocks that the pages of a site repeat are kept once."""

from kohaku_ray.collection.documents import parse_source
from kohaku_ray.config import load_config


def page(number, *more):
    texts = ("All rights reserved by the operator of the plant.", f"Page {number} has a text of its own.", *more)
    return f"<title>Page {number}</title>" + "".join(f"<p>{text}</p>" for text in texts)


def texts_of(path):
    (document,) = parse_source(str(path), load_config("demo", [])).documents
    return [p.text for section in document.sections for p in section.paragraphs], document.odd


def test_a_block_on_most_pages_of_a_directory_stays_on_the_first_alone(tmp_path):
    for number in range(5):
        twin = ["Two pages share this."] if number in (1, 2) else []
        (tmp_path / f"p{number}.html").write_text(page(number, *twin))
    first, odd = texts_of(tmp_path / "p0.html")
    assert first == ["All rights reserved by the operator of the plant.", "Page 0 has a text of its own."]
    assert odd == ()
    assert texts_of(tmp_path / "p1.html") == (
        ["Page 1 has a text of its own.", "Two pages share this."],
        ("1 block that other pages of its directory repeat, not indexed",),
    )
    assert texts_of(tmp_path / "p4.html")[0] == ["Page 4 has a text of its own."]


def test_two_pages_and_equal_pages_stay_whole(tmp_path):
    for folder, numbers in (("two", [0, 1]), ("equal", [7, 7, 7])):
        (tmp_path / folder).mkdir()
        for index, number in enumerate(numbers):
            (tmp_path / folder / f"p{index}.html").write_text(page(number))
    assert len(texts_of(tmp_path / "two" / "p1.html")[0]) == 2
    assert len(texts_of(tmp_path / "equal" / "p2.html")[0]) == 2


def test_a_page_that_cannot_be_read_hinders_none(tmp_path):
    for number in range(4):
        (tmp_path / f"p{number}.html").write_text(page(number))
    (tmp_path / "p4.html").write_bytes(b"")
    assert texts_of(tmp_path / "p2.html")[0] == ["Page 2 has a text of its own."]
