from __future__ import annotations

import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.pages.score_text import describe_scores as render

TRUTH = """id,question,answer_value,ref_id,split
q1,How much?,1000,['a'],public
q2,Which?,GPT-3,"['a','b']",private
q3,When?,is_blank,is_blank,public
q4,Range?,"[80,90]",['c'],
"""
RIGHT = 'id,answer_value,ref_id\nq1,1000.5,"[""a""]"\nq2,gpt-3,"b, a"\nq3,,\nq4,"[80, 90]",c\n'
POOR = 'id,answer_value,ref_id\nq1,1,"[""a""]"\nq1,1000,a\nq3,7,a\nq9,1,a\nq4,80-90,c\n,1,a\n'


@pytest.fixture
def files(tmp_path):
    for name, text in (("truth.csv", TRUTH), ("right.csv", RIGHT), ("poor.csv", POOR)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_missing_extra_doubled_and_nameless_rows_are_counted_and_named(files):
    report = run_score(files / "truth.csv", [files / "poor.csv"])
    poor = report.files[0]
    assert (poor.missing, poor.extra, poor.doubled, poor.n_without_id) == (("q2",), ("q9",), ("q1",), 1)
    assert report.records[0]["missing"] == 1
    assert report.records[0]["value"] == 0.0
    text = render(report)
    name = str(files / "poor.csv")
    assert f"{name}: 1 missing, scored 0 and not compared: q2" in text
    assert f"{name}: 1 not in the truth, not scored: q9" in text
    assert f"{name}: 1 doubled, the first row counts: q1" in text
    assert f"{name}: 1 row without an id, left out" in text


def test_by_splits_on_a_column_of_the_truth(files):
    report = run_score(files / "truth.csv", [files / "poor.csv"], ("kaggle",), by="split")
    figures = {record["label"]: (record["n"], record["missing"], record["value"]) for record in report.records}
    assert figures == {"public": (2, 0, 0.5), "private": (1, 1, 0.0), "(empty)": (1, 0, 1.0)}
    assert {record["by"] for record in report.records} == {"split"}
    head, _, first = render(report).splitlines()[:3]
    assert head.split() == ["file", "metric", "split", "score", "value", "ref", "abstain", "n", "missing"]
    assert first.split()[1:3] == ["kaggle", "public"]


def test_an_interval_takes_the_questions_of_a_cluster_as_one(tmp_path):
    """Eight documents with five questions each, all of them right or all wrong: as eight questions."""
    truth = ["id,answer_value,ref_id,document", *(f"q{n},{n + 1},['d'],d{n // 5}" for n in range(40))]
    given = ["id,answer_value,ref_id", *(f"q{n},{n + 1 if n < 15 else 999},['d']" for n in range(40))]
    for name, lines in (("truth.csv", truth), ("given.csv", given)):
        (tmp_path / name).write_text("\n".join(lines))
    (tmp_path / "eight.csv").write_text("\n".join([truth[0], *truth[1::5]]))
    report, eight = (
        run_score(tmp_path / name, [tmp_path / "given.csv"], ("kaggle",), cluster=by)
        for name, by in (("truth.csv", "document"), ("eight.csv", "id"))
    )
    [clustered], [by_itself] = report.records, eight.records
    assert (clustered["n"], clustered["n_clusters"], by_itself["n_clusters"]) == (40, 8, 8)
    ends = [by_itself[name] for name in ("score", "low", "high")]
    assert [clustered[name] for name in ("score", "low", "high")] == pytest.approx(ends)
    [narrow] = run_score(tmp_path / "truth.csv", [tmp_path / "given.csv"], ("kaggle",), cluster="id").records
    assert clustered["low"] < narrow["low"] < narrow["high"] < clustered["high"]
    head, *_ = render(report).splitlines()
    assert head.split()[-5:] == ["low", "high", "n", "clusters", "missing"]
    assert render(report).endswith("95 % interval, BCa bootstrap over clusters of one document")
    with pytest.raises(DataError, match=r"Did you mean document\?"):
        run_score(tmp_path / "truth.csv", [tmp_path / "given.csv"], cluster="dokument")


def test_an_unknown_column_is_named_with_the_nearest(files):
    with pytest.raises(DataError, match=r"no column splt; its columns are id, question, .*Did you mean split\?"):
        run_score(files / "truth.csv", [files / "poor.csv"], by="splt")


def test_errors_add_a_table_of_counts(files):
    report = run_score(files / "truth.csv", [files / "poor.csv", files / "right.csv"], errors=True)
    counts = {name: n for name, n in report.records[0]["errors"].items() if n}
    assert counts == {"unit conversion": 1, "false positive": 1, "type mismatch": 1}
    assert sum(report.records[1]["errors"].values()) == 0
    block = render(report).split("\n\n")[1].splitlines()
    assert block[0].startswith("errors")
    assert block[0].endswith("reference mismatch")
    assert block[2].split() == [str(files / "poor.csv"), "1", "0", "1", "0", "0", "1", "0", "0"]
    assert len({len(line) for line in block}) == 1
    assert "type mismatch" not in render(run_score(files / "truth.csv", [files / "poor.csv"]))
