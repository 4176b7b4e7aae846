"""Everything that a run reads, from S3: moto's server stands for it."""

from __future__ import annotations

import csv
import urllib.request
from pathlib import Path

import pytest
from kit.s3_server import BUCKET

from kohaku_ray.collection.documents import parse_collection
from kohaku_ray.collection.sources import questions_of, read_metadata
from kohaku_ray.config import load_config
from kohaku_ray.documents.read import filesystem_of
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import read_gold
from kohaku_ray.sample import path as sample_path


def test_a_run_reads_its_inputs_from_s3(s3):
    for name in ("documents/ferro2025.pdf", "documents/aru2025.txt", "questions.csv", "metadata.csv"):
        filesystem, inner = filesystem_of(s3.uri(f"in/{name}"))
        with filesystem.open_output_stream(inner) as stream:
            stream.write(Path(sample_path(name)).read_bytes())
    config = load_config(
        "demo",
        [
            f"documents.paths=['{s3.uri('in/documents')}']",
            f"documents.metadata={s3.uri('in/metadata.csv')}",
            f"questions.path={s3.uri('in/questions.csv')}",
        ],
    )
    collection = parse_collection(config)
    assert (collection.n_files, collection.rejects) == (2, ())
    assert [view.document.doc_id for view in collection.documents] == ["aru2025", "ferro2025"]
    assert collection.documents[1].document.metadata["citation"].startswith("Giulia Ferro")
    with open(sample_path("questions.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [question.question_id for question in questions_of(config)] == [row["id"] for row in rows]
    truth, metrics, note = read_gold(config.questions.path, [find_metric("wattbot")])
    assert (len(truth.rows), metrics[0].name, note) == (len(rows), "wattbot", "")
    assert len(read_metadata(config.documents.metadata)) == 13
    with pytest.raises(DataError, match=r"gone\.csv\?.* cannot be read"):
        read_metadata(s3.uri("in/gone.csv"))


def test_a_key_with_an_empty_part_is_one_reject(s3):  # arrow#40371
    headers = {"Content-Type": "text/plain"}
    for key in ("empty/plain.txt", "empty/sub//x.txt"):
        sent = urllib.request.Request(f"{s3.moto}/{BUCKET}/{key}", b"It used 5 MWh.", headers, method="PUT")
        urllib.request.urlopen(sent, timeout=10)
    collection = parse_collection(load_config("demo", [f"documents.paths=['{s3.uri('empty')}']"]))
    assert [view.document.doc_id for view in collection.documents] == ["plain"]
    [(name, reason)] = collection.rejects
    assert name == s3.uri("empty/sub//x.txt")
    assert reason.startswith(f"cannot read s3://{BUCKET}/empty/sub//x.txt: two slashes enclose an empty part")
    with pytest.raises(DataError, match=f"cannot list s3://{BUCKET}/empty/sub//x: two slashes"):
        parse_collection(load_config("demo", [f"documents.paths=['{s3.uri('empty/sub//x')}']"]))
