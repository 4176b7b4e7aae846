"""Ids of documents by their files' names: in one form, and apart where names are equal."""

import os
import unicodedata

from kohaku_ray.collection.documents import default_ids, parse_collection
from kohaku_ray.config import load_config

TEXT = "A sentence with some words.\n"


def collection(tmp_path, **documents):
    path = tmp_path / "c.yaml"
    lines = [f"  {key}: {value}" for key, value in {"paths": "[d/]", **documents}.items()]
    path.write_text("\n".join(["base: default", "run: r", "documents:", *lines]))
    os.chdir(tmp_path)
    return parse_collection(load_config(str(path)))


def ids(collection):
    return [view.document.doc_id for view in collection.documents]


def test_equal_names_get_as_few_folders_as_tell_them_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("d/x/report.txt", "d/y/report.txt", "d/y/other.md", "d/y/other.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    documents = collection(tmp_path)
    assert ids(documents) == ["other", "x-report", "y-report"]
    assert [(os.path.basename(file), reason[:16]) for file, reason in documents.rejects] == [
        ("other.txt", "doc_id 'other' i")
    ]
    assert default_ids(["a/x/r.txt", "b/x/r.md", "c.txt"]) == {"a/x/r.txt": "a-x-r", "b/x/r.md": "b-x-r"}
    assert default_ids(["s3://b/x/r.txt", "s3://b/y/r.txt"]) == {"s3://b/x/r.txt": "x-r", "s3://b/y/r.txt": "y-r"}


def test_an_accent_is_one_character_in_ids_and_metadata(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / unicodedata.normalize("NFD", "évaluation2024.txt")).write_text(TEXT)
    (tmp_path / "m.csv").write_text(f"id;title\n{unicodedata.normalize('NFD', 'évaluation2024')};Rapport\n")
    (view,) = collection(tmp_path, metadata="m.csv").documents
    assert (view.document.doc_id, view.document.title) == (unicodedata.normalize("NFC", "évaluation2024"), "Rapport")


def test_a_name_that_is_not_utf_8_is_one_reject(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "good.txt").write_text(TEXT)
    with open(os.fsencode(tmp_path / "d") + b"/bad\xff\xfename.txt", "w") as file:
        file.write(TEXT)
    documents = collection(tmp_path)
    assert ids(documents) == ["good"]
    ((file, reason),) = documents.rejects
    assert file.endswith("bad\\xff\\xfename.txt")
    assert reason == "its name is not UTF-8: rename it"
