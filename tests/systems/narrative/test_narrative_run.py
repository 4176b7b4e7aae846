"""Narrative on Ray: small novels indexed and judged through the engine's jobs, offline and by a fake server."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kit import tiny_encoder
from kit.fake_openai import Action, FakeOpenAI, completion
from kit.runs_here import index_here, run_here
from pages import opened
from systems.narrative.stories import GARDEN, HEADER, PRISON, ROWS

from kohaku_ray.config import load_config
from kohaku_ray.index.store import Index
from kohaku_ray.pages.report import write_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with books, one of them twice, stories, and the books' index."""
    home = tmp_path_factory.mktemp("narrative")
    (home / "books").mkdir()
    for name, text in {"The Prisoner of the Rock": PRISON, "The Garden": GARDEN, "Twice": f"{GARDEN}\n"}.items():
        (home / "books" / f"{name}.txt").write_text(text)
    (home / "stories.csv").write_text(HEADER + "\n".join(ROWS) + "\n")
    tiny_encoder.build(home / "encoder", [PRISON, GARDEN])
    index_here(config_of(home))
    return home


def config_of(home, *overrides, run="run"):
    places = (
        f"documents.paths=[{home}/books]",
        f"questions.path={home}/stories.csv",
        f"index.path={home}/index",
        f"index.encoder.model={home}/encoder/model",
        "index.chunks={unit: tokens, size: 60, min_size: 10, over: section}",
        f"ledger.path={home}/ledger",
        f"run={home}/{run}",
    )
    return load_config("narrative", [*places, *overrides])


def rows_of(config, name):
    return pq.read_table(f"{config.run}/{name}.parquet").to_pylist(maps_as_pydicts="strict")


def test_books_and_stories_become_labels_dossiers_and_results(cluster, home):
    from kohaku_ray.engine.jobs.answer import run_answer

    config = config_of(home, "cluster.retriever.replicas=1")
    summary = run_answer(config)
    rejects = {Path(row["file"]).name: row["reason"] for row in Index.open(config.index.path).rejects.to_pylist()}
    assert rejects.keys() == {"Twice.txt"}
    assert re.fullmatch(r"the same text as .*/The Garden\.txt, word for word: .*", rejects["Twice.txt"])
    assert (summary.n_questions, summary.n_member_errors) == (5, 1)
    with open(f"{config.run}/submission.csv", encoding="utf-8", newline="") as file:
        written = {row["id"]: row for row in csv.DictReader(file)}
    assert {key: row["answer_value"] for key, row in written.items()} == {
        **dict.fromkeys(("46", "007", "9"), "consistent"), "137": "contradict", "10": "is_blank",
    }  # fmt: skip
    assert list(written) == ["46", "137", "007", "9", "10"]
    assert [written["137"][name] for name in ("confidence", "claims", "findings")] == ["0.9500", "1", "3"]
    assert "act_after_death" in written["137"]["explanation"]
    with open(f"{config.run}/results.csv", encoding="utf-8", newline="") as file:
        results = {
            row["Story ID"]: (row["Prediction"], row["Rationale"], row["Confidence"]) for row in csv.DictReader(file)
        }
    assert {key: row[0] for key, row in results.items()} == {"46": "1", "137": "0", "007": "1", "9": "1", "10": "1"}
    assert results["10"][1].startswith("Not judged")
    assert results["137"][1:] == (written["137"]["explanation"], "0.9500")
    assert "'The Kitchen', but the index has" in results["10"][1]
    [error] = [row["error"] for row in rows_of(config, "answers") if row["error"]]
    assert "'The Kitchen', but the index has" in error
    trace = rows_of(config, "trace")
    assert {row["question_id"] for row in trace if row["note"] == "character unknown"} == {"007"}
    quoted = [row for row in trace if row["step"] == "dossier" and row["node_id"]]
    books = " ".join((PRISON + GARDEN).split())
    assert quoted
    assert all(" ".join(row["text"].split()) in books for row in quoted)
    page = opened(Path(write_report(config.run)).read_text(encoding="utf-8"))
    assert "majority class" in page
    assert "act_after_death" in page


def judge(index, body):
    """A model that contradicts by odd seeds, and is surer then."""
    odd = body["seed"] % 2 == 1
    reply = {"excerpts": [], "rationale": f"Seed {body['seed']}.", "label": "contradict" if odd else "consistent"}
    return Action(body=completion(json.dumps({**reply, "confidence": 0.95 if odd else 0.6})))


def fake(server):
    deployment = {"kind": "openai", "base_url": server.base_url, "model": "fake", "api_key_env": None}
    return [f"deployments.fake={json.dumps(deployment)}", "roles.search.model=fake"]


def test_seeded_members_vote_by_confidence_which_the_submission_shows(home):
    with FakeOpenAI(judge) as server:
        overrides = ("ensemble.members=2", "roles.search.temperature=0.7", "narrative.stages=1")
        config = config_of(home, *fake(server), *overrides, run="two")
        run_here(config)
        assert len({received.body["seed"] for received in server.log}) == len(server.log) == 2 * 4
        assert {received.body["temperature"] for received in server.log} == {0.7}
    members: dict[str, list[str]] = {}
    for row in rows_of(config, "answers"):
        members.setdefault(row["question_id"], []).append(row["answer_value"])
    with open(f"{config.run}/submission.csv", encoding="utf-8", newline="") as file:
        written = {row["id"]: (row["answer_value"], row["confidence"]) for row in csv.DictReader(file)}
    assert written.pop("10") == ("is_blank", "is_blank")
    split = [key for key in written if len(set(members[key])) == 2]
    assert split
    for key in split:
        assert written[key] == ("contradict", f"{(0.95 + 0.4) / 2:.4f}")
