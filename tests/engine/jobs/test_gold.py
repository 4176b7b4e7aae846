"""Gold answers stay out: a run is the same to the byte whatever the questions' gold columns say."""

from __future__ import annotations

import csv
import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.answers import COMPARED, fake, rows_of
from kit.fake_openai import FakeOpenAI

from kohaku_ray.config import Config
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.run.segments import SegmentStore
from kohaku_ray.sample import path as sample_path
from kohaku_ray.systems.questions import QuestionColumns

pytestmark = pytest.mark.ray

LIMIT = 3


def write_questions(path: Path, mark: str) -> str:
    """The sample's questions with the mark in every gold column, unlike anything that stands in a document."""
    with open(sample_path("questions.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    gold = QuestionColumns().gold
    path.parent.mkdir()
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, sorted(gold | rows[0].keys()))
        writer.writeheader()
        writer.writerows(row | {column: f"{mark}-{column}-{row['id']}" for column in gold} for row in rows)
    return str(path)


def written(config: Config) -> str:
    """All that a run keeps, as text: tables, submission, and the ledger with its keys."""
    tables = [rows_of(config.run, name) for name in ("answers", "votes", "trace", "usage")]
    entries = SegmentStore(config.ledger.path).load(lambda _: True).entries
    submission = Path(config.run, "submission.csv").read_text(encoding="utf-8")
    return json.dumps([tables, submission, {key: str(entry) for key, entry in entries.items()}], ensure_ascii=False)


@pytest.mark.slow
def test_other_gold_answers_give_the_same_run_to_the_byte(sample_config, run_answer, tmp_path):
    marks, configs, keys = ("GOLDQZX", "DLOGXZQ"), [], []
    small = (f"questions.limit={LIMIT}", "ensemble.members=2", "ensemble.models=[fake, extractive]")
    with FakeOpenAI() as server, ExitStack() as up:
        for mark in marks:
            questions = write_questions(tmp_path / mark / "questions.csv", mark)
            paths = (f"questions.path={questions}", f"ledger.path={tmp_path}/ledger-{mark}")
            config = sample_config(*fake(server), *small, *paths, name=f"run-{mark}")
            up.enter_context(serving(config.used_deployments))  # up for both runs
            assert run_answer(config).n_member_errors == 0
            asked = {(row["member"], row["deployment"]) for row in rows_of(config.run, "usage") if row["member"] >= 0}
            assert asked == {(0, "fake"), (1, "extractive")}, "members ask models of their own"
            configs.append(config)
            keys.append(set(SegmentStore(config.ledger.path).load(lambda _: True).entries))
        assert server.n_requests > 2 * LIMIT
        asked = json.dumps([received.body for received in server.log])
    assert keys[0] == keys[1]
    assert len(keys[0]) >= 3 * LIMIT
    for name in COMPARED:
        first, second = (Path(config.run, name).read_bytes() for config in configs)
        assert first == second, name
    for mark in marks:
        assert mark not in asked
        assert all(mark not in written(config).replace(f"run-{mark}", "") for config in configs)
