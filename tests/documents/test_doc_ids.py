import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.documents.content import check_doc_id, default_doc_id
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


@pytest.mark.parametrize(
    ("doc_id", "fault"),
    [
        ("a:b", "holds a colon"),
        ("a/b", "holds a slash"),
        ("a\\b", "holds a backslash"),
        ("a\nb", "holds a control character"),
        ("a\x7fb", "holds a control character"),
        ("a\u2028b", "holds a line separator"),
        ("a\udc80b", "holds a byte that is not Unicode"),
        ("", "is empty"),
        ("  ", "is empty"),
        (" a", "begins or ends with a space"),
        ("x" * 201, "has 201 characters, at most 200 are allowed"),
    ],
)
def test_a_bad_id_is_named_with_its_file_and_the_way_out(doc_id, fault):
    with pytest.raises(DataError) as caught:
        check_doc_id(doc_id, "corpus/file.md")
    message = str(caught.value)
    assert message.startswith("corpus/file.md: doc_id ")
    assert fault in message
    assert "rename the file, or give the document an id of its own" in message
    assert len(message) < 260


@given(st.text(st.characters(blacklist_categories=["C", "Z"], blacklist_characters=":/\\"), min_size=1, max_size=200))
def test_any_other_id_is_kept(doc_id):
    assert check_doc_id(doc_id, "f") == doc_id
