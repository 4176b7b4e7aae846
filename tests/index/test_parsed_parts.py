"""Parts of parsed documents: typed tables that tasks write beside the index, and reducers read by rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import KEY_BYTES, no_keys
from kohaku_ray.index.flatten import NODE_SCHEMA, document_table, flatten
from kohaku_ray.index.pending import NEW_TEXT_SCHEMA, ParsedParts, PendingVectors, n_files_of, part_name
from kohaku_ray.store.storage import Directory


def document_row(make_document, doc_id, *sentences):
    document = make_document(doc_id, list(sentences))
    texts = pa.table({"key": [bytes([n]) * 16 for n in range(len(sentences))], "n_tokens": [5] * len(sentences)})
    return {
        "file": f"{doc_id}.md",
        "where": f"{doc_id}.md",
        "doc_id": doc_id,
        "par_ids": [],
        "documents": document_table([document]),
        "nodes": flatten(document),
        "texts": texts.cast(NEW_TEXT_SCHEMA),
    }


@pytest.fixture
def make_document():
    from kohaku_ray.documents.markup.markdown import parse_markdown

    return lambda doc_id, sentences: parse_markdown(f"{doc_id}.md", f"# {doc_id}\n\n{' '.join(sentences)}".encode())


REJECT = {"file": "bad.pdf", "where": "bad.pdf", "reason": "no text"}


def test_a_documents_tables_come_back_whatever_stands_around_it(tmp_path, make_document):
    parts = ParsedParts(str(tmp_path), "job")
    rows = {name: document_row(make_document, name, f"The hall {name} draws 4 MW.", "It is cool.") for name in "abcd"}
    parts.write(part_name(2, 2), [rows["c"], rows["d"]])
    parts.write(part_name(0, 2), [rows["b"], REJECT, rows["a"]])
    rows_read = parts.rows()
    assert [row["where"] for row in rows_read] == ["b.md", "bad.pdf", "a.md", "c.md", "d.md"]
    assert [row["reason"] for row in rows_read] == [None, "no text", None, None, None]
    used = sorted((row for row in rows_read if row["reason"] is None), key=lambda row: row["doc_id"])
    assert [table.to_pylist() for table in parts.tables(used, "nodes")] == [
        rows[n]["nodes"].to_pylist() for n in "abcd"
    ]
    assert parts.table(used, "nodes").schema.equals(NODE_SCHEMA)
    assert parts.table(used[1:3], "documents")["doc_id"].to_pylist() == ["b", "c"]
    assert len(parts.table(used, "texts")) == 8
    assert len(parts.table(used, "images")) == 0
    assert parts.table([], "nodes").equals(NODE_SCHEMA.empty_table())
    assert parts.rows("tree", parts=[part_name(2, 2)])[0]["tree"] is None
    assert n_files_of(parts.names()) == 4


def test_a_documents_tables_lie_in_the_batch_of_its_shard_and_no_other_is_read(tmp_path, make_document, monkeypatch):
    parts = ParsedParts(str(tmp_path), "job")
    rows = [
        document_row(make_document, name, f"Hall {name} is cool.") | {"shard": n % 3} for n, name in enumerate("abcde")
    ]
    parts.write(part_name(0, 6), [*rows, REJECT])
    row_of = {row["doc_id"]: row for row in parts.rows()}
    read = []
    arrow_batches = Directory.arrow_batches

    def counted(self, name, choose):
        tables = arrow_batches(self, name, choose)
        read.extend(tables)
        return tables

    monkeypatch.setattr(Directory, "arrow_batches", counted)
    assert parts.table([row_of["e"], row_of["b"]], "documents")["doc_id"].to_pylist() == ["e", "b"]
    assert [table["doc_id"].to_pylist() for table in read] == [["b", "e"]]
    for name, row in zip("abcde", rows, strict=True):
        [nodes] = parts.tables([row_of[name]], "nodes")
        assert nodes.to_pylist() == row["nodes"].to_pylist()


def test_a_shard_reads_its_own_vectors_and_others_only_for_what_it_lacks(tmp_path):
    pending, identity = PendingVectors(str(tmp_path)), {"model": "m", "sha256": "0", "dim": None}
    keys = np.array([bytes([n]) * KEY_BYTES for n in range(1, 7)]).astype(no_keys().dtype)
    vectors = np.arange(12, dtype=np.float32).reshape(6, 2)
    pending.write(identity, keys[:4].tolist(), vectors[:4], [[0], [1], [0, 1], [0]])
    pending.write(identity, keys[4:].tolist(), vectors[4:])  # as another index lends them
    assert pending.keys(identity) == set(keys.tolist())

    def load(numbers, shard):
        positions, matrix = pending.load(identity, keys[numbers], shard)
        return dict(zip(positions.tolist(), matrix.tolist(), strict=True))

    for numbers, shard in (([1, 2], 1), ([0, 2, 3], 0), ([0, 1, 2], 1), ([4, 1, 2], 1), ([5], 7), ([], 7)):
        assert load(numbers, shard) == {keys[n].tobytes(): vectors[n].tolist() for n in numbers}
    assert len(pending.load(identity)[0]) == 7, "one text is in two shards"


def test_a_part_is_there_when_it_is_whole_and_a_repeated_task_replaces_it(tmp_path, make_document, monkeypatch):
    parts = ParsedParts(str(tmp_path), "job")
    row = document_row(make_document, "a", "One.")

    def torn(self, name, *batches):
        if ".images" in name:
            raise DataError("the node died")
        write(self, name, *batches)

    write = ParsedParts._write
    with monkeypatch.context() as patch:
        patch.setattr(ParsedParts, "_write", torn)
        with pytest.raises(DataError, match="the node died"):
            parts.write(part_name(0, 1), [row])
    assert parts.names() == []
    for _ in range(2):
        parts.write(part_name(0, 1), [row])
    assert parts.names() == ["000000000-000001"]
    assert len(parts.rows()) == 1


def test_jobs_do_not_see_each_other_and_nothing_stays(tmp_path, make_document):
    mine, other = ParsedParts(str(tmp_path), "mine"), ParsedParts(str(tmp_path), "other")
    for parts in (mine, other):
        parts.write(part_name(0, 1), [document_row(make_document, "a", "One.")])
    mine.clear()
    assert mine.names() == []
    assert len(other.rows()) == 1
    PendingVectors(str(tmp_path)).clear()  # the next job that ends, after one that was killed
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_on_s3_a_file_is_a_request_and_all_of_a_job_are_deleted_by_few(s3, make_document):
    """A request takes tens of milliseconds there, and a job has thousands of files."""
    mine, other = (ParsedParts(s3.uri("index/parts"), job) for job in ("mine", "other"))
    row = document_row(make_document, "a", "One.")
    mine.write(part_name(0, 1), [row])
    names = ("documents", "nodes", "images", "texts", "rows")
    assert s3.requests == [
        f"PUT /kohaku/index/parts/pending/parsed-mine/000000000-000001.{name}.arrow" for name in names
    ]
    for number in range(1, 9):
        mine.write(part_name(number, 1), [row])
    other.write(part_name(0, 1), [row])
    s3.requests.clear()
    mine.clear()
    assert len(s3.requests) <= 4, s3.requests
    assert (mine.names(), len(other.names())) == ([], 1)
    mine.clear()
