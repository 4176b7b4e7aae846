"""Data sets of the Hugging Face hub: by a stand-in of ``datasets``, and by the package from a local directory."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace

import pytest
from kit.rows import check_rows

from kohaku_ray.cli import main
from kohaku_ray.collection.sources import questions_of, read_metadata
from kohaku_ray.config import load_config
from kohaku_ray.documents.data.rows import suffix_of
from kohaku_ray.documents.find import find_files
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.documents.read import read_bytes, read_hub
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import read_gold

ROWS = [{"id": "q1", "question": "How much?", "answer": "5 kWh"}, {"id": "q2", "question": "Who?", "answer": "Ada"}]


class Rows(list):
    """What ``load_dataset`` returns for one split."""

    features = {"id": SimpleNamespace(), "photo": type("Image", (), {})()}

    def remove_columns(self, names):
        return [{key: value for key, value in row.items() if key not in names} for row in self]


@pytest.fixture(autouse=True)
def _forgotten():
    read_hub.cache_clear()
    yield
    read_hub.cache_clear()


@pytest.fixture
def asked(monkeypatch):
    """A stand-in with the signature of ``datasets.load_dataset``; yields what it was asked for."""
    calls = []

    def load_dataset(path, name=None, data_dir=None, data_files=None, split=None, *, revision=None, **kwargs):
        calls.append((path, name, split, revision))
        if path == "o/gone":
            raise FileNotFoundError("no such\ndata set")
        rows = Rows({**row, "photo": b"\xff"} for row in ROWS)
        return rows if split else {"train": rows, "test": rows} if path == "o/two" else {"train": rows}

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True if name == "datasets" else find_spec(name))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_questions_gold_documents_and_metadata_come_from_a_data_set(asked):
    uri = "hf://datasets/o/qa?split=test[:2]&name=en&revision=v1"
    config = load_config("demo", [f"questions.path={uri}"])
    assert [(question.question_id, question.text) for question in questions_of(config)] == [
        ("q1", "How much?"),
        ("q2", "Who?"),
    ]
    truth, metrics, _ = read_gold(uri, [find_metric("wattbot")])
    assert ([row.answer for row in truth.rows.values()], metrics[0].name) == (["5 kWh", "Ada"], "answer")
    assert read_metadata(uri)["q2"] == {"question": "Who?", "answer": "Ada"}
    assert asked == [("o/qa", "en", "test[:2]", "v1")], "read once per process"
    assert find_files([uri]) == [uri]
    data = read_bytes("hf://datasets/o/docs").replace(b'"question"', b'"text"')
    documents = parse_documents("hf://datasets/o/docs", data).documents
    assert [(document.doc_id, document.metadata) for document in documents] == [
        ("q1", {"answer": "5 kWh"}),
        ("q2", {"answer": "Ada"}),
    ]


@pytest.mark.usefixtures("asked")
@check_rows(
    ("uri", "error", "message"),
    [
        ("hf://datasets/o/two", DataError, r"the splits train, test: name one, such as hf://datasets/o/two\?split=train"),
        ("hf://datasets/o/gone", DataError, r"cannot be read from the hub \(FileNotFoundError: no such data set\)"),
        ("hf://datasets/alone", ConfigError, r"names no data set: write hf://datasets/OWNER/NAME\?split=train"),
        ("hf://models/o/n", ConfigError, "names no data set"),
        ("hf://datasets/o/n?splits=a", ConfigError, r"has the option splits: write .*, with the options split, name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(uri, error, message):
    with pytest.raises(error, match=message):
        read_bytes(uri)


def test_without_the_package_the_command_says_how_to_install_it(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "datasets" else find_spec(name))
    message = "hf://datasets/o/n needs the package datasets, which is not installed: pip install datasets"
    assert main(["validate", "demo", "--set", "questions.path=hf://datasets/o/n"]) == 2
    assert message in capsys.readouterr().err
    assert main(["documents", "demo", "--set", "documents.paths=[hf://datasets/o/n]"]) == 2
    assert message in capsys.readouterr().err


def test_a_file_of_a_repository_is_read_as_it_is(monkeypatch):
    asked = []

    class Files:
        def open(self, path, mode, revision=None):
            asked.append((path, mode, revision))
            return open(__file__, "rb")

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "HfFileSystem", Files)
    with open(__file__, "rb") as file:
        assert read_bytes("hf://datasets/o/n/data/q.csv?revision=main") == file.read()
    assert asked == [("datasets/o/n/data/q.csv", "rb", "main")]
    assert suffix_of("hf://datasets/o/n/data/q.csv") == "csv"


def test_the_package_itself_reads_a_local_directory(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    home = tmp_path / "owner" / "name"
    home.mkdir(parents=True)
    (home / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert [json.loads(line) for line in read_bytes("hf://datasets/owner/name").splitlines()] == ROWS
    assert [json.loads(line) for line in read_bytes("hf://datasets/owner/name?split=train[:1]").splitlines()] == ROWS[
        :1
    ]
    with pytest.raises(DataError, match=r"cannot be read from the hub \(ValueError"):
        read_bytes("hf://datasets/owner/name?split=dev")
