import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.text.content import default_doc_id, valid_doc_id
from kohaku_ray.errors import DataError


@pytest.mark.parametrize(
    ("name", "doc_id"),
    [
        ("a/b/li2025a.json", "li2025a"),
        ("v1.2 notes.md", "v1.2 notes"),
        ("s3://bucket/dir/a%20b.md?region=us-east-1", "a b"),
        ("README", "README"),
    ],
)
def test_the_default_id_is_the_stem(name, doc_id):
    assert default_doc_id(name) == doc_id


@check_rows("doc_id", ["li2025a", "In search of the castaways", "v1.2_notes-b", "été", "日本", "हिन्दी", "LM-42"])
def test_an_id_of_letters_digits_and_inner_spaces_is_kept(doc_id):
    assert valid_doc_id(doc_id, "f") == doc_id


@check_rows(
    ("doc_id", "shown"),
    [
        ("a] x [ref_id=b", "a- x -ref_id-b"),
        ("arxiv:2405.1", "arxiv-2405.1"),
        *[
            ("a/b", "a-b"),
            ("a\\b", "a-b"),
            ("a\nb", "a-b"),
            ("a\u2028b", "a-b"),
            ("a\udc80b", "a-b"),
            ("a\xa0b", "a-b"),
        ],
        *[(" a", "a"), ("a  b", "a-b"), ("a⟧b", "a-b"), ("a（b）", "a-b"), ("???", "")],
    ],
)
def test_another_character_becomes_a_hyphen_and_the_id_ends_in_its_digest(doc_id, shown):
    valid_id = valid_doc_id(doc_id, "f")
    assert re.fullmatch(rf"{re.escape(shown)}-?[0-9a-f]{{8}}", valid_id), valid_id
    assert valid_doc_id(valid_id, "f") == valid_id


@pytest.mark.parametrize(
    ("doc_id", "fault"),
    [("", "is empty"), ("  ", "is empty"), ("x" * 201, "has 201 characters, at most 200 are allowed")],
)
def test_a_bad_id_is_named_with_its_file_and_the_way_out(doc_id, fault):
    with pytest.raises(DataError) as caught:
        valid_doc_id(doc_id, "corpus/file.md")
    message = str(caught.value)
    assert message.startswith("corpus/file.md: doc_id ")
    assert fault in message
    assert "rename the file, or give the document an id of its own" in message
    assert len(message) < 260


@given(st.lists(st.text(min_size=1, max_size=180).filter(str.strip), unique=True, max_size=20))
def test_two_ids_stay_two_and_hold_no_bracket(doc_ids):
    valid_ids = {valid_doc_id(doc_id, "f") for doc_id in doc_ids}
    assert len(valid_ids) == len(doc_ids)
    for doc_id in valid_ids:
        assert len(doc_id) <= 200
        assert {unicodedata.category(char)[0] for char in doc_id} <= set("LMNZPP")
        assert not set(doc_id) & set("[](){}=<>:/\\\"',;|")


def test_a_file_name_cannot_forge_a_reference():
    document = parse_file("d/a] 1 [ref_id=b.txt", b"Some text.")
    assert "]" not in document.doc_id
    assert document.odd == (f"the id 'a] 1 [ref_id=b' is written {document.doc_id}",)


@pytest.mark.parametrize("doc_id", ["is_blank", "NaN", "none", "null"])
def test_an_id_that_a_citation_would_read_as_none_is_changed(doc_id):
    written = valid_doc_id(doc_id, "f")
    assert written.startswith(f"{doc_id}-")
    assert valid_doc_id(written, "f") == written
