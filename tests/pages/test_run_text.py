"""How one question was answered, on a terminal."""

import json

import pytest
from pages import check_golden
from run_files import item, match, plan, small_run
from test_report_page import own_run

from kohaku_ray.cli import main
from kohaku_ray.errors import DataError
from kohaku_ray.pages.run_text import show_question
from kohaku_ray.pages.text import write_number
from kohaku_ray.run.files import steps_of


@pytest.mark.parametrize("key", ["q1", "q4"])
def test_steps_members_and_vote_are_laid_out(tmp_path, key):
    check_golden(f"show_{key}.txt", show_question(str(small_run(tmp_path / "run")), key, None))


def test_without_an_id_the_questions_are_listed(tmp_path, capsys):
    run = str(small_run(tmp_path / "run"))
    assert main(["show", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["q1", "q2", "q3", "q4"]
    assert "How many MW did the hall draw?" in lines[2]
    assert main(["--json", "show", run]) == 0
    assert [one["question_id"] for one in json.loads(capsys.readouterr().out)["questions"]] == ["q1", "q2", "q3", "q4"]


def test_a_system_of_any_name_with_steps_of_any_name_is_shown(tmp_path):
    check_golden("show_own.txt", show_question(str(own_run(tmp_path / "run")), "q1", None))


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
    with pytest.raises(DataError, match=r"has no question other; it has 4 questions, from q1 on"):
        show_question(run, "other", None)


def test_steps_keep_the_order_in_which_they_began_and_errors_are_said_once():
    rows = [
        item("q1", "b", 0, "one", error="odd"),
        item("q1", "a", 0, "two"),
        item("q1", "b", 1, "three", error="odd"),
        item("q1", "b", 0, "four", member=1),
    ]
    steps = steps_of(rows)
    assert [(step.name, step.member, len(step.items), step.errors) for step in steps] == [
        ("b", -1, 2, ("odd",)),
        ("a", -1, 1, ()),
        ("b", 1, 1, ()),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (41.0, "41"), (11_371.0, "11,371"), (20_560.4, "20,560"), (0.12345, "0.1235")),
        *((1e300, "1e+300"), (float("nan"), "nan")),
    ],
)
def test_counts_are_whole_and_scores_short(value, text):
    assert write_number(value) == text
