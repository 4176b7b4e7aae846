"""KohakuRAG JSON goes both ways: what is written is read to the same tree."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray import sample
from kohaku_ray.documents.data.kohakurag import parse_kohakurag, write_kohakurag
from kohaku_ray.documents.find import find_files
from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section, Sentence
from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.errors import DataError
from kohaku_ray.systems.hybrid.news import NEWS

SAMPLES = [Path(path) for path in find_files([sample.path("documents")])]


def again(document):
    return parse_kohakurag("written.json", write_kohakurag(document).encode())


@check_rows("file", SAMPLES)
def test_every_sample_document_comes_back(file):
    document = parse_file(str(file), file.read_bytes())
    assert again(document) == document


@pytest.mark.parametrize("split", ["punkt", "period", "sliding"])
def test_news_with_columns_of_their_own_and_overlapping_sentences_come_back(split):
    data = Path(sample.path("news/articles.csv")).read_bytes()
    documents = parse_documents("articles.csv", data, None, NEWS, split).documents
    assert documents
    assert all(again(document) == document for document in documents)


@pytest.mark.data
def test_the_wattbot_corpus_comes_back(data_path):
    for path in find_files([str(data_path / "wattbot" / "corpus")]):
        document = parse_file(path, read_bytes(path))
        assert again(document) == document, path


@given(
    st.lists(
        st.builds(
            lambda text, spans, kind, caption, page: Paragraph(
                text,
                tuple(Sentence(*sorted((a % (len(text) + 1), b % (len(text) + 1)))) for a, b in spans),
                page,
                attachment=kind and Attachment(kind, None, caption),
            ),
            st.text(alphabet=" ab.[img:x]", max_size=20),
            st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=3),
            st.sampled_from([None, "image", "table"]),
            st.none() | st.text(alphabet=" a.", max_size=5),
            st.none() | st.integers(0, 9),
        ),
        max_size=4,
    ),
    st.none() | st.integers(0, 9),
)
def test_any_paragraph_comes_back(paragraphs, page):
    document = Document("d", "A title", (Section("One", tuple(paragraphs), page),))
    assert again(document) == document


def test_what_the_formats_own_rules_keep_is_written_without_ours():
    section = Section("One", (Paragraph("First. Second.", (Sentence(0, 6), Sentence(7, 14)), 2),), 2)
    written = json.loads(write_kohakurag(Document("d", "T", (section,), {"year": "2024"})))
    assert written == {
        "document_id": "d",
        "title": "T",
        "text": "First. Second.",
        "metadata": {"year": "2024"},
        "sections": [
            {
                "title": "One",
                "paragraphs": [
                    {
                        "text": "First. Second.",
                        "sentences": [{"text": "First."}, {"text": "Second."}],
                        "metadata": {"page": 2},
                    }
                ],
                "metadata": {"page": 2},
            }
        ],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [1, 2, 3]}, r"sections\[0\].paragraphs\[0\].metadata.bbox is a list, expected 4 numbers"),
        ({"bbox": 3}, r"metadata.bbox is 3, expected a list"),
        ({"verbatim": True}, r"sentences\[0\].metadata is not a span of the 4 characters of its text"),
    ],
)
def test_a_wrong_value_is_named(change, message):
    section = Section("One", (Paragraph("One.", (Sentence(0, 4),)),))
    root = json.loads(write_kohakurag(Document("d", "T", (section,))))
    root["sections"][0]["paragraphs"][0]["metadata"] |= change
    with pytest.raises(DataError, match=message):
        parse_kohakurag("written.json", json.dumps(root).encode())
