"""Everything that a run reads, from S3: moto's server stands for it.

Its dependencies exclude some of ours, so it is installed apart and named by KOHAKU_MOTO:
``uv pip install --target /tmp/moto 'moto[server]'; KOHAKU_MOTO=/tmp/moto pytest tests/documents/test_s3.py``.
"""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kohaku_ray.config import load_config
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import read_gold
from kohaku_ray.run.documents import parse_collection
from kohaku_ray.run.sources import questions_of, read_metadata
from kohaku_ray.sample import path as sample_path

MOTO = os.environ.get("KOHAKU_MOTO", "")

pytestmark = pytest.mark.skipif(not MOTO, reason="KOHAKU_MOTO names no directory with moto[server]")


@pytest.fixture(scope="module")
def bucket():
    """Yield a function that turns a key into a URI, in a bucket with some of the sample."""
    from pyarrow import fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": MOTO},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)

        def uri(key):
            return f"s3://key:secret@bucket/{key}?endpoint_override=127.0.0.1%3A{port}&scheme=http&region=us-east-1"

        store = fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        store.create_dir("bucket")
        for name in ("documents/ferro2025.pdf", "documents/aru2025.txt", "questions.csv", "metadata.csv"):
            with store.open_output_stream(f"bucket/in/{name}") as stream:
                stream.write(Path(sample_path(name)).read_bytes())
        yield uri
    finally:
        server.terminate()
        server.wait()


def test_a_run_reads_its_inputs_from_s3(bucket):
    config = load_config(
        "demo",
        [
            f"documents.paths=['{bucket('in/documents')}']",
            f"documents.metadata={bucket('in/metadata.csv')}",
            f"questions.path={bucket('in/questions.csv')}",
        ],
    )
    found = parse_collection(config)
    assert (found.n_files, found.rejects) == (2, ())
    assert [view.document.doc_id for view in found.documents] == ["aru2025", "ferro2025"]
    assert found.documents[1].document.metadata["citation"].startswith("Giulia Ferro")
    with open(sample_path("questions.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [one.question_id for one in questions_of(config)] == [row["id"] for row in rows]
    truth, metrics, note = read_gold(config.questions.path, [find_metric("wattbot")])
    assert (len(truth.rows), metrics[0].name, note) == (len(rows), "wattbot", "")
    assert len(read_metadata(config.documents.metadata)) == 13
    with pytest.raises(DataError, match=r"gone\.csv\?.* cannot be read"):
        read_metadata(bucket("in/gone.csv"))
