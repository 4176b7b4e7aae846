"""Vectors of queries are encoded once for all runs of a ledger, by whatever process asked first."""

from __future__ import annotations

import numpy as np
import pytest

from kohaku_ray.index import queries as module
from kohaku_ray.index.queries import FOLDER, KeptQueries

IDENTITY = {"model": "somewhere", "sha256": "0" * 64, "query_prompt": "query: "}


class Encoder:
    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return np.array([[len(text), *text.encode()[:2]] for text in texts], np.float32)


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


def files(path):
    return sorted((path / FOLDER).glob("*.arrow"))


def test_what_one_process_encoded_another_does_not(tmp_path, encoder):
    first = KeptQueries(str(tmp_path), IDENTITY)
    assert len(first) == 0
    made = first.encode(["one", "two", "one"], encoder)
    assert [vector.tolist() for vector in made] == [[3, 111, 110], [3, 116, 119], [3, 111, 110]]
    first.write()
    again = KeptQueries(str(tmp_path), {**IDENTITY, "model": "moved"})
    mixed = again.encode(["three", "two"], encoder)
    assert [vector.tobytes() for vector in mixed] == [vector.tobytes() for vector in (*encoder(["three"]), made[1])]
    assert encoder.asked == ["one", "two", "three", "three"]


def test_another_prompt_is_another_vector(tmp_path, encoder):
    first = KeptQueries(str(tmp_path), IDENTITY)
    first.encode(["one"], encoder)
    first.write()
    KeptQueries(str(tmp_path), {**IDENTITY, "query_prompt": ""}).encode(["one"], encoder)
    assert encoder.asked == ["one", "one"]


def test_new_vectors_are_written_by_themselves(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(module, "WRITE_AFTER_S", 0.01)
    kept = KeptQueries(str(tmp_path), IDENTITY)
    kept.encode(["one"], encoder)
    kept._timer.join(10)
    assert len(KeptQueries(str(tmp_path), IDENTITY)) == 1


def test_torn_files_and_a_directory_that_cannot_be_written_cost_an_encoding(tmp_path, encoder):
    kept = KeptQueries(str(tmp_path), IDENTITY)
    kept.encode(["one"], encoder)
    kept.write()
    [file] = files(tmp_path)
    file.write_bytes(file.read_bytes()[:50])
    again = KeptQueries(str(tmp_path), IDENTITY)
    assert len(again.encode(["one"], encoder)) == 1
    assert encoder.asked == ["one", "one"]
    (tmp_path / "file").write_text("no directory")
    nowhere = KeptQueries(str(tmp_path / "file"), IDENTITY)
    nowhere.encode(["one"], encoder)
    nowhere.write()


def test_many_files_are_joined(tmp_path, encoder):
    for number in range(module.MOST_FILES + 2):
        kept = KeptQueries(str(tmp_path / "one"), IDENTITY)
        kept._directory = module.Directory(str(tmp_path / "all"))
        kept.encode([f"text {number}", "shared"], encoder)
        kept.write()
    assert len(files(tmp_path / "all")) == module.MOST_FILES + 2
    joined = KeptQueries(str(tmp_path / "all"), IDENTITY)
    assert len(files(tmp_path / "all")) == 1
    assert len(joined) == module.MOST_FILES + 3
    encoder.asked.clear()
    joined.encode([f"text {number}" for number in range(module.MOST_FILES + 2)], encoder)
    assert encoder.asked == []
