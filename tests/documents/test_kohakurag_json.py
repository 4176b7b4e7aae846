import json

import pytest
from kit.rows import check_rows
from kit.trees import sentences

from kohaku_ray.documents.model import Attachment
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError

PLACEHOLDER = "[Image page=1 idx=1 name=Im0.jpg] Size: 3843x2165, Data: 818840 bytes"


def parse(root):
    return parse_file("docs/file1.json", json.dumps(root).encode())


def one_section(*paragraphs, **section):
    return {"sections": [{"title": "Page 1", "paragraphs": list(paragraphs), **section}]}


def test_everything_that_is_there_is_read():
    document = parse(
        {
            "document_id": "amazon2023",
            "title": " A report ",
            "metadata": {
                "url": "https://x.org",
                "year": 2023,
                "open": True,
                "score": 1.5,
                "none": None,
                "tags": ["a", 1],
                "deep": {},
            },
            **one_section({"text": "One. Two.", "metadata": {"page": 4}}, {"text": "Three."}, metadata={"page": 3}),
        }
    )
    assert (document.doc_id, document.title) == ("amazon2023", "A report")
    assert document.metadata == {"url": "https://x.org", "year": "2023", "open": "true", "score": "1.5", "tags": "a, 1"}
    (section,) = document.sections
    assert (section.title, section.page) == ("Page 1", 3)
    assert [paragraph.page for paragraph in section.paragraphs] == [4, 3]
    assert sentences(section.paragraphs[0]) == ["One.", "Two."]


def test_given_sentences_are_kept_in_order():
    text = "so it. so it. Then more, longer. Rest"
    given = [{"text": "so it."}, {"text": "so it. "}, "Then more, ", {"text": None}, {"text": "longer. Rest"}]
    (section,) = parse(one_section({"text": text, "sentences": given})).sections
    assert [(s.start, s.end) for s in section.paragraphs[0].sentences] == [(0, 6), (7, 13), (14, 24), (25, 37)]


@pytest.mark.parametrize("given", [["Two.", "One."], ["One.", "Elsewhere."], [], None])
def test_sentences_that_do_not_fit_are_replaced_by_our_own(given):
    (section,) = parse(one_section({"text": "One. Two.", "sentences": given})).sections
    assert sentences(section.paragraphs[0]) == ["One.", "Two."]


def test_a_paragraph_with_sentences_but_no_text_is_their_sum():
    (section,) = parse(one_section({"text": None, "sentences": ["One.", {"text": "Two."}]})).sections
    assert section.paragraphs[0].text == "One. Two."


def test_null_is_empty_and_never_the_word_none():
    document = parse(
        {
            "document_id": None,
            "title": None,
            "metadata": None,
            "sections": [
                {
                    "title": None,
                    "metadata": None,
                    "paragraphs": [{"text": None}, {"text": " \n"}, {"text": "Kept.", "sentences": None}],
                },
                {"title": "Empty", "paragraphs": None},
            ],
        }
    )
    assert (document.doc_id, document.title, document.metadata) == ("file1", "file1", {})
    assert [(section.title, [p.text for p in section.paragraphs]) for section in document.sections] == [
        ("", ["Kept."]),
        ("Empty", ["Empty"]),  # a heading without text can be searched
    ]


def test_an_image_placeholder_is_an_attachment_without_text():
    metadata = {"page": 2, "attachment_type": "image", "image_name": "Im0.jpg"}
    named = {"text": PLACEHOLDER, "sentences": [{"text": PLACEHOLDER}], "metadata": metadata}
    (section,) = parse(one_section(named, {"text": PLACEHOLDER}, {"text": "Text."})).sections
    first, second, _ = section.paragraphs
    assert first.attachment == Attachment("image", "Im0.jpg", None)
    assert second.attachment == Attachment("image", None, None)
    assert (first.text, first.sentences, first.page, second.text, second.sentences) == ("", (), 2, "", ())


@pytest.mark.parametrize(
    "paragraph",
    [
        {"text": PLACEHOLDER, "metadata": {"attachment_type": "image", "caption": " A bar chart. It rises. "}},
        {"text": "[img:Fig1 1024x683] A bar chart. It rises.", "metadata": {"attachment_type": "image"}},
        {"text": f"{PLACEHOLDER}\nA bar chart. It rises."},
        {"text": None, "metadata": {"attachment_type": "image", "caption": "A bar chart. It rises."}},
    ],
)
def test_a_captioned_image_is_searchable_by_its_caption(paragraph):
    (section,) = parse(one_section(paragraph)).sections
    (image,) = section.paragraphs
    assert image.text == image.attachment.caption == "A bar chart. It rises."
    assert sentences(image) == ["A bar chart.", "It rises."]


def test_a_table_keeps_its_text():
    table = {"text": "A100: 400 W", "metadata": {"attachment_type": "table", "caption": "Power", "image_path": "t.png"}}
    bare = {"text": "", "metadata": {"attachment_type": "table", "caption": "Power of GPUs"}}
    (section,) = parse(one_section(table, bare)).sections
    assert section.paragraphs[0].text == "A100: 400 W"
    assert section.paragraphs[0].attachment == Attachment("table", "t.png", "Power")
    assert section.paragraphs[1].text == "Power of GPUs"


def test_a_text_without_sections_is_read_as_plain_text():
    document = parse({"document_id": "d", "title": "T", "text": "One.\n\nCHAPTER II\n\nTwo.", "sections": []})
    assert [(s.title, [p.text for p in s.paragraphs]) for s in document.sections] == [
        ("T", ["One."]),
        ("CHAPTER II", ["Two."]),
    ]


def test_half_a_surrogate_pair_is_replaced():
    (section,) = parse_file("x.json", rb'{"sections":[{"paragraphs":[{"text":"a \ud800 b \ud83d\ude00"}]}]}').sections
    assert section.paragraphs[0].text == "a \ufffd b 😀"


@check_rows(
    ("root", "message"),
    [
        (
            [],
            " is a list, expected an object with document_id, title and sections (rows of texts are read from .jsonl: "
            "an object per line).",
        ),
        (None, " is null, expected an object with document_id, title and sections."),
        ({"document_id": 17}, ": document_id is 17, expected a string."),
        ({"metadata": []}, ": metadata is a list, expected an object."),
        ({"sections": {}}, ": sections is an object, expected a list."),
        ({"sections": ["x"]}, ': sections[0] is "x", expected an object.'),
        (one_section({"text": 17}), ": sections[0].paragraphs[0].text is 17, expected a string."),
        (one_section({}, "x" * 99), ": sections[0].paragraphs[1] is a string, expected an object."),
        (
            one_section({"sentences": ["a", {"text": False}]}),
            ": sections[0].paragraphs[0].sentences[1].text is false, expected a string.",
        ),
        (
            one_section({"metadata": {"page": "iv"}}),
            ': sections[0].paragraphs[0].metadata.page is "iv", expected a whole number.',
        ),
        (one_section(metadata={"page": True}), ": sections[0].metadata.page is true, expected a whole number."),
        (one_section(metadata={"page": -1}), ": sections[0].metadata.page is -1, expected 0 to 2147483647."),
        (
            one_section({"text": PLACEHOLDER, "metadata": {"caption": 5}}),
            ": sections[0].paragraphs[0].metadata.caption is 5, expected a string.",
        ),
    ],
)
def test_a_wrong_type_is_named_by_its_json_path(root, message):
    with pytest.raises(DataError) as caught:
        parse(root)
    assert str(caught.value) == f"docs/file1.json{message}"


def test_malformed_json_is_named_by_its_place():
    with pytest.raises(DataError, match=r"^x\.json is not valid JSON: Expecting ',' delimiter at line 2, column 1\.$"):
        parse_file("x.json", b'{"title": "a"\n"text": "b"}')
    with pytest.raises(DataError, match=r"^x\.json is not valid JSON: Exceeds the limit"):
        parse_file("x.json", b'{"year": ' + b"9" * 5000 + b"}")


def test_a_doubled_key_is_named():
    with pytest.raises(DataError, match=r"d\.json: the key 'title' is there twice: rename or remove one"):
        parse_file("d.json", b'{"document_id": "d", "title": "a", "title": "b", "text": "One."}')
