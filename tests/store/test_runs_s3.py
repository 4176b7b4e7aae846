"""A run's directory on an object store, without a cluster."""

from __future__ import annotations

import pytest

from kohaku_ray.collection.sources import questions_of, read_metadata
from kohaku_ray.config import load_config
from kohaku_ray.errors import DataError
from kohaku_ray.runs.facts import run_record
from kohaku_ray.runs.truth import own_truth
from kohaku_ray.store.directory import RunDirectory, submission_of
from kohaku_ray.store.storage import is_file, publish
from kohaku_ray.store.tables import SCHEMAS


def test_outputs_are_written_and_found_again(s3):
    path = s3.uri("runs/one")
    config = load_config("demo", [f"run={path}", "index.path="])
    assert config.index.path == s3.uri("runs/one/index"), "the index is in the run's directory by default"
    directory = RunDirectory(path)
    directory.check_writable()
    directory.begin(run_record(config))
    with pytest.raises(DataError, match=r"no votes\.parquet"):
        directory.read_table("votes")
    directory.write_tables([])
    assert directory.read_table("votes").schema.equals(SCHEMAS["votes"])
    assert own_truth(path) is not None
    with pytest.raises(DataError, match=r"no submission\.csv"):
        submission_of(path)
    publish(directory.file("submission.csv"), b"id,answer_value,ref_id\n")
    assert submission_of(path) == s3.uri("runs/one/submission.csv")


def test_another_configuration_removes_what_the_last_one_wrote(s3):
    path = s3.uri("runs/two")
    directory = RunDirectory(path)
    directory.begin(run_record(load_config("demo", [f"run={path}"])))
    directory.write_tables([])
    directory.begin(run_record(load_config("demo", [f"run={path}", "seed=7"])))
    assert not is_file(directory.file("votes.parquet"))


def test_questions_and_metadata_are_read(s3):
    publish(s3.uri("inputs/q.csv"), b"id,question\nq1,How many?\nq2,Why?\n")
    questions = questions_of(load_config("demo", [f"questions.path={s3.uri('inputs/q.csv')}"]))
    assert [(item.question_id, item.text) for item in questions] == [("q1", "How many?"), ("q2", "Why?")]
    publish(s3.uri("inputs/metadata.csv"), b"id,title\na,A report\n")
    assert read_metadata(s3.uri("inputs/metadata.csv")) == {"a": {"title": "A report"}}
