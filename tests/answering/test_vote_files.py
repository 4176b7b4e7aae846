from __future__ import annotations

import ast
import csv
from collections import Counter
from pathlib import Path

import pytest

from kohaku_ray.answering.vote_files import run_vote
from kohaku_ray.ensemble.vote import VoteRule
from kohaku_ray.evaluation.submissions import read_submission, write_submission

HEAD = "id,question,answer,answer_value,answer_unit,ref_id,ref_url,supporting_materials,explanation\n"
A = HEAD + (
    'q2,Second?,,7,W,"[""a""]","[""https://wrong/a""]",Table 1,A says so\n'
    'q1,First?,,2 kWh,Wh,"[""[ref_id=b]""]","[""https://x/b""]",,A says so\n'
)
B = HEAD + (
    "q1,First?,It is 2000,2000,Wh,\"['b']\",\"['https://x/b']\",Figure 2,B says so\n"
    "q3,Third?,,is_blank,,is_blank,is_blank,is_blank,B says no\n"
    'q2,Second?,,9,W,"[""a""]","[""https://x/a""]",is_blank,B says so\n'
)
C = HEAD + 'q2,Second?,,9,W,"[""a""]","[""https://x/a""]",is_blank,C says so\nq1,First?,,,Wh,is_blank,,,C says no\n'


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path, text in zip(paths, (A, B, C), strict=True):
        path.write_text(text)
    return paths


def test_a_missing_row_is_a_blank_ballot_and_counted(files):
    result = run_vote(files, VoteRule(ignore_blank=False))
    assert dict(result.missing) == {str(files[0]): ("q3",), str(files[1]): (), str(files[2]): ("q3",)}
    by_id = {row.question_id: verdict for row, verdict in zip(result.rows, result.verdicts, strict=True)}
    assert by_id["q3"].is_blank
    assert by_id["q3"].groups[0].members == (0, 1, 2)
    assert run_vote(files[:1] * 2 + files[1:2], VoteRule(ignore_blank=False)).verdicts[2].n_votes == 3


def test_rows_come_out_ready_to_write(files, tmp_path):
    out = tmp_path / "out.csv"
    write_submission(out, run_vote(files, VoteRule()).rows)
    rows = read_submission(out).rows
    assert (rows["q2"].answer_unit, rows["q2"].ref_urls, rows["q2"].explanation) == ("W", ("https://x/a",), "B says so")
    assert (rows["q1"].question, rows["q1"].answer_value, rows["q1"].ref_urls) == ("First?", "2000", ("https://x/b",))
    blank = rows["q3"].columns
    assert [blank[name] for name in ("answer_value", "ref_id", "ref_url", "supporting_materials")] == ["is_blank"] * 4
    assert blank["explanation"] == "B says no"


def test_agreement_weighs_files_over_all_questions(tmp_path):
    def file(name: str, values: str) -> Path:
        rows = "".join(f"q{i},{value},a\n" for i, value in enumerate(values))
        path = tmp_path / name
        path.write_text("id,answer_value,ref_id\n" + rows)
        return path

    paths = [file("a", "1234567891"), file("b", "1234567891"), file("c", "9876543212"), file("d", "8887776662")]
    paths.append(file("e", "7776665552"))
    assert run_vote(paths, VoteRule()).rows[-1].answer_value == "2"
    result = run_vote(paths, VoteRule(weights="agreement"))
    assert result.rows[-1].answer_value == "1"
    assert sum(result.weights.values()) == pytest.approx(5)


def published_vote(tables: list[dict[str, dict[str, str]]], question_id: str, mode: str, tiebreak: str):
    """What the published script answers: its rules, told again to have something to compare with."""
    rows = [table[question_id] for table in tables if question_id in table]
    counts = Counter(row["answer_value"].strip() or "is_blank" for row in rows)
    top, _ = counts.most_common(1)[0]
    chosen = [row for row in rows if (row["answer_value"].strip() or "is_blank") == top]
    if len(counts) == len(rows) > 1:
        if tiebreak == "blank":
            return "is_blank", set()
        chosen = rows[:1]
    sets = [set() if row["ref_id"] in ("", "is_blank") else set(ast.literal_eval(row["ref_id"])) for row in chosen]
    refs = set.union(*sets) if mode == "union" else set.intersection(*sets)
    return chosen[0]["answer_value"].strip() or "is_blank", refs


@pytest.mark.data
@pytest.mark.parametrize("mode", ["union", "intersection"])
@pytest.mark.parametrize("tiebreak", ["first", "blank"])
@pytest.mark.parametrize("n_files", [3, 37])
def test_compat_is_the_published_vote_on_real_runs(data_path, mode, tiebreak, n_files):
    paths = sorted((data_path / "wattbot" / "predictions").glob("*.csv"))[-n_files:]
    tables = []
    for path in paths:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            tables.append({row["id"]: row for row in csv.DictReader(handle)})
    result = run_vote(paths, VoteRule(strategy=mode, ignore_blank=False, tiebreak=tiebreak, compat="kohakurag"))
    assert len(result.rows) == 41
    for row in result.rows:
        value, refs = published_vote(tables, row.question_id, mode, tiebreak)
        assert (row.answer_value or "is_blank") == value
        if row.answer_value:
            assert set(row.ref_ids) == {str(ref) for ref in refs if ref}


def test_what_is_odd_about_a_file_is_told(tmp_path):  # sgl-eval#39
    path = tmp_path / "a.csv"
    path.write_text("id,answer_value,ref_id\nq1,1,a\nq1,2,a\n,3,a\nq2,1,234,a\n")
    assert list(run_vote([path], VoteRule()).notes.values()) == [
        (
            "1 doubled, the first row counts: q1",
            "1 with more cells than the header (an unquoted comma?): q2",
            "1 row without an id, left out",
        )
    ]


def test_values_are_written_as_metrics_read_them_or_as_files_spell_them(tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in "ab"]
    for path, value in zip(paths, ("80-90%", "[80,90]"), strict=True):
        path.write_text(f'id,answer_value,answer_unit,ref_id\nq1,"{value}",percent,a\nq2,77,MWh,a\n')
    assert [row.answer_value for row in run_vote(paths, VoteRule()).rows] == ["[80,90]", "77"]
    assert [row.answer_value for row in run_vote(paths, VoteRule(), None, keep_spellings=True).rows] == ["80-90%", "77"]
