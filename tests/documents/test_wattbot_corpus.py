import pytest

from kohaku_ray.documents.find import find_files
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.read import read_bytes

pytestmark = pytest.mark.data


def test_the_wattbot_corpus_is_read_whole(data_path):
    documents = [parse_file(path, read_bytes(path)) for path in find_files([str(data_path / "wattbot" / "corpus")])]
    sections = [section for document in documents for section in document.sections]
    paragraphs = [paragraph for section in sections for paragraph in section.paragraphs]
    images = [paragraph for paragraph in paragraphs if paragraph.attachment]
    texts = [paragraph for paragraph in paragraphs if not paragraph.attachment]
    assert (len(documents), len(sections), len(images), len(texts)) == (32, 639, 280, 664)
    assert sum(len(paragraph.sentences) for paragraph in texts) == 24_241  # without 41 that are a full stop alone
    assert all(image.text == "" and image.sentences == () and image.attachment.path for image in images)
    assert not any("[Image page=" in paragraph.text for paragraph in texts)
    assert all(paragraph.page is not None for paragraph in paragraphs)
    assert all(document.metadata.keys() >= {"url", "type", "year"} for document in documents)
    assert documents[0].doc_id == "amazon2023"


def test_a_novel_falls_into_its_chapters(data_path):
    path = str(data_path / "kdsh" / "books" / "The Count of Monte Cristo.txt")
    titles = [section.title for section in parse_file(path, read_bytes(path)).sections]
    chapters = [title for title in titles if "Chapter " in title]
    assert len(chapters) == 117
    assert chapters[0] == "VOLUME ONE › Chapter 1. Marseilles—The Arrival"
    assert chapters[-1] == "Chapter 117. The Fifth of October"
