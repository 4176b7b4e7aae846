"""How one question was answered, on a terminal."""

import json

import pytest
from kit.rows import check_rows
from run_files import index, match, own_run, plan, small_run

from kohaku_ray.cli import main
from kohaku_ray.errors import DataError
from kohaku_ray.pages.run_text import WIDTH, describe_answer, show_question
from kohaku_ray.pages.text import write_number
from kohaku_ray.runs.files import question_rows


def test_steps_members_and_vote_are_laid_out(tmp_path):
    lines = show_question(str(small_run(tmp_path / "run")), "q1", None).splitlines()
    assert lines[:6] == [
        "q1  How many MW did the hall draw?",
        "",
        "plan: 2",
        "     0. How many MW did the hall draw?",
        "     1. hall load MW",
        "",
    ]
    assert lines[6:9] == [
        "evidence: 2",
        "     0. a2024:sec0:p0:s1  dense  score 0.9  frequency 3  similarity 1.75  n_tokens 9",
        "        The hall drew 41 MW in May.",
    ]
    start = lines.index("members")
    assert lines[start + 1 : start + 4] == [
        "   0  seed       1000  attempt 0  41 MW  [a2024]  2 calls, 1,280 tokens",
        "      Member 0 read it.",
        "      context_tokens 400",
    ]
    start = lines.index("vote")
    assert lines[start + 1 : start + 3] == ["  41 MW  [a2024]", "  3 members, 0 blank, 0 in error; 41 × 3"]
    assert lines[-1].startswith(
        "took    extractive: 5 calls, 2,700 prompt tokens (19% cached, members share 0%), 200 generated"
    )


def described(run, question_id: str, **vote: object) -> list[str]:
    rows = question_rows(str(run), question_id)
    rows["votes"][0].update(vote)
    return describe_answer(rows, str(run.parent / "index"), 1.25).splitlines()


def test_an_answer_stands_first_with_its_passage_and_page(tmp_path):
    index(tmp_path / "index", "a2024")
    lines = described(small_run(tmp_path / "run"), "q1")
    assert lines == [
        "41 MW",
        "Member 0 read it.",
        "  a2024  Report, page 4",
        "    “The hall drew 41 MW in May.”",
        "3 of 3 members agree",
        "5 calls, 4 made: 2,200 tokens read, 160 written, $0.0040; 1.2 s",
    ]


def test_members_agree_in_their_own_units(tmp_path):  # PortOS#7304
    rows = question_rows(str(small_run(tmp_path / "run")), "q1")
    rows["votes"][0] |= {"answer_value": "41000", "answer_unit": "kW", "asked_unit": "kW"}
    units = ["MW", "kW", "MW"]
    rows["answers"] = [row | {"answer_unit": unit} for row, unit in zip(rows["answers"], units, strict=True)]
    assert "2 of 3 members agree" in describe_answer(rows, str(tmp_path / "index"), 1.25).splitlines()


def test_an_answer_has_twelve_lines_at_most_and_an_index_that_is_gone_costs_pages_alone(tmp_path):
    run = small_run(tmp_path / "run")
    lines = described(run, "q1", ref_ids=["a2024", "b", "c", "d", "e"], explanation="Long. " * 500)
    assert len(lines) <= 12
    assert lines[2] == "  a2024"
    assert "  and 2 more documents: d, e" in lines
    assert all(len(line) <= 2 * WIDTH for line in lines)
    assert described(run, "q4", is_blank=True)[0] == "no answer"


def test_without_an_id_the_questions_are_listed(tmp_path, capsys):
    run = str(small_run(tmp_path / "run"))
    assert main(["show", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["q1", "q2", "q3", "q4"]
    assert "How many MW did the hall draw?" in lines[2]
    assert main(["--json", "show", run]) == 0
    assert [question["question_id"] for question in json.loads(capsys.readouterr().out)["questions"]] == [
        "q1",
        "q2",
        "q3",
        "q4",
    ]


def test_members_that_abstain_or_fail_say_so(tmp_path):
    text = show_question(str(small_run(tmp_path / "run")), "q4", None)
    assert "   2  seed       1002  attempt 0  is_blank  []  1 call, 540 tokens" in text
    assert "      error: no JSON" in text
    assert "  is_blank  []\n  3 members, 3 blank, 1 in error; is_blank × 3" in text


def test_a_system_of_any_name_with_steps_of_any_name_is_shown(tmp_path):
    run = str(own_run(tmp_path / "run"))
    text = show_question(run, "q1", None)
    assert "\nskim_pages: 2\n     0. fast  worth 0.5\n        page one\n     1. page two\n" in text
    assert "\nBM25 search of member 1, attempt 2: 1\n     0. red, surely\n" in text
    assert '      doubt 0.125  page_tokens 12,000\n      details: {"because": ["<x>"]}\n' in text
    assert "\nprepare: 0\n  error: no such page\n" in show_question(run, "q2", None)


@pytest.mark.parametrize(("n", "hint"), [(1, "  … 29 more: --items 0 shows all"), (30, None), (None, None)])
def test_items_are_limited_per_step(tmp_path, n, hint):
    rows = [*plan("q1", *map(str, range(30))), *(match("q1", rank, text=f"text {rank}") for rank in range(30))]
    text = show_question(str(small_run(tmp_path / "run", trace=rows)), "q1", n)
    assert text.count("a2024:sec0:p0:s1") == (n or 30)
    assert "plan: 30" in text
    assert ("more: --items" in text) == (hint is not None)
    assert text.count(hint or "plan: 30") == (2 if hint else 1)


def test_a_question_that_is_not_there_is_named(tmp_path):
    run = str(small_run(tmp_path / "run"))
    with pytest.raises(DataError, match=r"run has no question q1x.*did you mean q1"):
        show_question(run, "q1x", None)
    with pytest.raises(DataError, match=r"has no question other; it has 4 questions, from q1 on: .* lists them"):
        show_question(run, "other", None)


@check_rows(
    ("value", "text"),
    [(0.0, "0"), (41.0, "41"), (11_371.0, "11,371"), (0.12345, "0.1235"), (1e300, "1e+300"), (float("nan"), "nan")],
)
def test_counts_are_whole_and_scores_short(value, text):
    assert write_number(value) == text
