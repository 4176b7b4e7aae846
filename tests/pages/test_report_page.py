import os
import random
import re
import subprocess
import sys
from pathlib import Path
from string import ascii_letters

import pyarrow.parquet as pq
import pytest
from pages import Tags, check_harmless, opened, page_of, plain, question
from run_files import (
    CONFIG,
    FACTS,
    answer,
    ballot,
    index,
    item,
    match,
    plan,
    small_run,
    small_truth,
    usage,
    write_run,
    write_truth,
)

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.paired import paired_bootstrap
from kohaku_ray.pages import report as report_module
from kohaku_ray.pages.questions import Limits
from kohaku_ray.pages.report import MAX_BYTES, write_report


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small")
    run = small_run(path / "run")
    index(run / "index", "a2024", "b2025")
    return run, small_truth(path / "truth.csv")


@pytest.fixture(scope="module")
def page(small):
    return page_of(*small)


def test_the_page_needs_nothing_beside_it_and_runs_nothing(page):
    check_harmless(page)
    policy = next(dict(a)["content"] for t, a in Tags(page).tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "@import" not in page
    assert "url(http" not in page


def test_the_same_run_gives_the_same_bytes(small, page, tmp_path):
    assert page_of(*small, output=str(tmp_path / "again.html")) == page


def test_the_head_says_what_ran(page):
    text = plain(page)
    for fact in ("Run run", "kohaku", "extractive (extractive)", "3, evidence shared", "12.5", "ray 2.60.0"):
        assert fact in text
    assert "Answered by the extractive backend: no language model, but a baseline" in text
    assert "answer 13 0 0" in text
    assert "plan 0 1 0" in text
    assert "7,200 in prompts, 560 generated" in text


def test_scores_and_errors_are_those_of_the_score_command(page):
    text = plain(page)
    assert "wattbot 0.7562 0.7500 0.6250 1.0000 4" in text
    assert "vote 1 a member had the right value, and lost the vote value selection another number" in text
    assert "farther off than rounding 1 q2" in text
    assert "the right value, but other references than the truth 1 q3" in text
    assert "None: false positive, false negative, unit conversion, rounding, type mismatch" in text


def test_each_plot_has_axes(page):
    assert page.count('<svg role="img"') == 4
    for label in ("mean over questions (0 to 1)", "members that gave the written answer (of 3)"):
        assert f">{label}</text>" in page
    assert "prompts, all attempts 500, generated, all attempts 40, context tokens, as measured 400" in page
    for label in ("tokens per member answer (log scale)", "last attempt, from 0"):
        assert f">{label}</text>" in page


def test_a_question_shows_how_its_answer_came_about(page):
    text = question(page, "q1")
    assert "How many MW did the hall draw? 41 MW · truth 41 MW" in text
    assert "q1 right 3 of 3 members" in text
    assert "wattbot 1.000 value 1.00 references 1.00 abstention 1.00" in text
    assert "p. 4" in text
    assert "41 · weight 3, members 0, 1, 2, wins" in text
    assert "0 41 MW right a2024 1000 0 context tokens 400 1,200 80 It is 41. Member 0 read it." in text
    assert "Plan: 2 items 0 How many MW did the hall draw? 1 hall load MW" in text
    assert "0 Report › Load › paragraph 0 › sentence 1 cited in the truth" in text
    assert "a2024:sec0:p0:s1 page 4 sentence dense score 0.9 frequency 3 similarity 1.75 n tokens 9" in text
    assert "1 Report › Load › paragraph 1 b2025:sec0:p1" in text
    assert "paragraph lexical score 0.9 n tokens 9" in text


def test_the_match_is_marked_in_its_paragraph(page):
    assert "Servers hum. <mark>The hall drew 41 MW in May.</mark> Fans spin faster in June." in page


def test_citations_link_to_their_documents(page):
    links = {a["href"]: a for t, a in Tags(page).tags if t == "a" and not a["href"].startswith("#")}
    assert {"https://example.org/a", "https://example.org/b2025"} == set(links)


def test_votes_that_split_and_members_that_fail_are_told(page):
    split = question(page, "q2")
    assert "q2 wrong: value selection 2 of 3 members" in split
    assert "7 · weight 2, members 0, 2, wins" in split
    assert "52 · weight 1, member 1" in split
    assert "1 52 MW right" in split
    blank = question(page, "q4")
    assert "q4 blank, as the truth 3 of 3 members" in blank
    assert "Error: no JSON Reply: eh" in blank
    assert "None was recorded" in blank
    assert "q3 right in part: reference mismatch" in question(page, "q3")


def test_the_list_filters_by_outcome_agreement_cause_and_class(page):
    selects = dict(re.findall(r'<select name="(\w+)">(.*?)</select>', page))
    options = {
        name: dict(re.findall(r'<option value="([^"]*)">[^<]* \((\d+)\)</option>', text))
        for name, text in selects.items()
    }
    assert options["mark"] == {"": "4", "right": "3", "part": "1", "wrong": "1", "blank": "1", "error": "1"}
    assert options["agree"] == {"": "4", "all": "3", "split": "1"}
    assert options["cause"] == {"": "4", "vote": "1", "references or other parts": "1"}
    assert options["error"] == {"": "4", "value selection": "1", "reference mismatch": "1"}
    cards = [attributes for tag, attributes in Tags(page).tags if "q" in attributes.get("class", "").split()]
    assert len(cards) == 4
    for name, counts in options.items():
        for value, n in counts.items():
            if value:
                assert sum(value in card[f"data-{name}"].split("|") for card in cards) == int(n)
    assert [float(card["data-score"]) for card in cards] == [1.0, 0.1, 0.925, 1.0]
    assert [card["data-agreement"] for card in cards] == ["1.000", "0.667", "1.000", "1.000"]


def test_the_first_screen_says_score_cost_coverage_and_what_to_look_at(page):
    text = plain(page[: page.index("<h2>Scores")])
    rows = [1.0, 0.1, 0.925, 1.0]
    interval = paired_bootstrap(rows)
    assert f"Score 0.756 wattbot, 95 % interval {interval.low:.3f} to {interval.high:.3f} kaggle" in text
    assert "Cost 7,760 tokens 7,200 in prompts, 560 generated 14 model calls: 13 made by this run, 1 from the" in text
    assert "$0.0140, of which $0.0130 for calls made by this run" in text
    assert "Coverage 3 of 4 answered" in text
    assert "1 abstained, 1 of them rightly" in text
    assert "0 in error" in text
    assert "1 question with errors of models" in text
    assert "1 question lost in the vote: a member had the right value" in text
    assert "1 question where members disagree" in text
    assert "q2 among the worst, score 0.10: How many in 2024?" in text
    links = [a["href"] for t, a in Tags(page[: page.index("<h2>Scores")]).tags if t == "a"]
    shown = ("mark=error", "cause=vote", "cause=references+or+other+parts", "agree=split")
    assert links == [*(f"#show:{value}" for value in shown), "#q-q2"]


def test_without_a_truth_there_are_no_scores(small, tmp_path):
    page = page_of(small[0], output=str(tmp_path / "page.html"))
    assert "No truth was given, so nothing is scored." in page
    assert "<h2>Scores</h2>" not in page
    assert "show-wrong" not in page
    assert "q1 answered 3 of 3 members" in plain(page)


def test_figures_of_a_whole_run_are_shown_with_the_gold_of_their_metric(tmp_path):
    given = [[answer(key, 0, value)] for key, value in (("q1", "consistent"), ("q2", "contradict"))]
    facts = {**FACTS, "metrics": ["label"], "split_by": ["book"]}
    run = write_run(tmp_path / "run", [(ballot(one[0]["question_id"], "?", one), one) for one in given], facts=facts)
    truth = tmp_path / "truth.csv"
    truth.write_text("id,content,label,book\nq1,Once.,1,<b>Sea</b>\nq2,Twice.,consistent,Land\n")
    page = page_of(run, truth)
    check_harmless(page)
    text = plain(page)
    assert "Over all questions: label" in text
    assert "accuracy 0.5000 0.0945 to 0.9055" in text
    assert "majority class 1.0000 always consistent" in text
    assert "true label read as consistent read as contradict consistent 1 1 contradict 0 0" in text
    assert "<b>Sea</b> 1 1.0000 (0.2065 to 1.0000)" in text
    assert text.count("· truth consistent") == 2
    assert "Brier" not in text


def test_questions_without_gold_are_no_truth(small, tmp_path):
    file = tmp_path / "test.csv"
    file.write_text("id,question,answer_value,ref_id\nq1,?,,\n")
    assert "Nothing is scored: test.csv has no gold answers." in page_of(
        small[0], file, output=str(tmp_path / "p.html")
    )
    file.write_text("id,question\nq1,?\n")
    text = plain(page_of(small[0], file, output=str(tmp_path / "p.html")))
    assert "Nothing is scored: test.csv has no gold answers: it has no column answer_value, ref_id" in text


def test_rows_that_do_not_meet_are_counted(small, tmp_path):
    truth = write_truth(tmp_path / "truth.csv", ("q1", "41", ["a2024"]), ("q9", "1", ["a2024"]))
    text = plain(page_of(small[0], truth, output=str(tmp_path / "p.html")))
    assert "1 questions of the truth are not in the run and score 0." in text
    assert "3 questions of the run are not in the truth and are not scored." in text
    assert "q2 answered" in text


def test_without_the_index_matches_stand_alone(tmp_path):
    page = page_of(small_run(tmp_path / "run"))
    assert "matches are shown without their paragraphs: there is no index at" in plain(page)
    assert '<mark class="whole">The hall drew 41 MW in May.</mark>' in page
    assert "a2024 › sec0 › p0 › s1" in plain(page)


def test_evidence_is_limited_and_shared_by_a_questions_lists(tmp_path):
    rows = [match("q1", rank, attempt=attempt) for attempt in (0, 2) for rank in range(30)]
    text = plain(page_of(small_run(tmp_path / "run", trace=rows)))
    assert "Evidence: the first 10 of 30 items" in text
    assert "Evidence, attempt 2: the first 10 of 30 items" in text
    assert "at most 3,000 questions, 20 items per step of a question" in text


def test_300_questions_of_9_members_stay_under_the_limit(tmp_path):
    text = "The hall drew 41 MW & more in May, “as metered”. " * 40
    questions, trace = [], []
    for number in range(300):
        key = f"q{number}"
        given = [answer(key, member, "41", answer=text[:300], explanation=text[:600]) for member in range(9)]
        questions.append((ballot(key, text[:200], given), given))
        trace += [match(key, rank, text=text) for rank in range(32)]
    path = write_report(str(write_run(tmp_path / "run", questions, trace=trace)), None)
    assert os.path.getsize(path) < 2_000_000 < MAX_BYTES
    assert len(opened(Path(path).read_text(encoding="utf-8"))) > 5_000_000


def test_a_page_that_would_be_too_large_shows_less(tmp_path, monkeypatch):
    limits = (Limits(9, 9, 25_000, 50, 5000), Limits(2, 1, 30, 5, 50))
    monkeypatch.setattr(report_module, "LIMITS", limits)
    monkeypatch.setattr(report_module, "MAX_BYTES", 110_000)
    letters = random.Random(0)
    rows = [match("q1", rank, text="".join(letters.choices(ascii_letters, k=25_000))) for rank in range(9)]
    page = page_of(small_run(tmp_path / "run", trace=rows), small_truth(tmp_path / "truth.csv"))
    assert len(page) < 110_000
    text = plain(page)
    assert "The first 2 of 4 questions" in text
    assert "Evidence: the first 1 of 9 items" in text
    assert "farther off than rounding 1 q2" in text
    assert "other references than the truth 1 q3" in text
    assert "Answer agreement: 3 of 4 questions unanimous" in page


def test_each_member_may_plan_for_itself(tmp_path):
    plans = [*plan("q1", "one", member=0), *plan("q1", "two", member=1, error="bad plan")]
    rows = [match("q1", member=member) for member in (0, 1)]
    models = {"answer": ["big (vllm)"], "plan": ["small (openai)"]}
    page = page_of(
        small_run(
            tmp_path / "run",
            trace=[*plans, *rows],
            config=CONFIG.replace("scope: answer", "scope: question"),
            facts=FACTS | {"models": models, "baselines": []},
        )
    )
    text = plain(page)
    assert "3, each prepares for itself" in text
    assert "big (vllm); plan small (openai)" in text
    assert "baseline" not in text
    assert "Plan, member 1: 1 item with an error Error: bad plan 0 two" in text
    assert "Evidence, member 1: 1 item" in text


def own_run(path, config="system: nowhere.to_be_found:SYSTEM\nfound: {pages: 2}\n", **facts):
    """A run of somebody's system: steps, measures, settings and metrics of its own."""
    given = [
        answer("q1", member, "red", measures={"doubt": 0.125, "page_tokens": 12_000.0}, details='{"because": ["<x>"]}')
        for member in range(2)
    ]
    other = [answer("q2", member, "", measures={}) for member in range(2)]
    trace = [
        item("q1", "skim_pages", 0, "page one", note="fast", scores={"worth": 0.5}),
        item("q1", "skim_pages", 1, "page two", kind="page", doc_id="a2024"),
        item("q1", "BM25 search", 0, "red, surely", member=1, attempt=2),
        item("q2", "prepare", error="no such page"),
    ]
    facts = {"system": "found", "metrics": ["exact"], "models": {"judge": ["big (vllm)"]}, "lead": "judge"} | facts
    facts = FACTS | {"baselines": []} | facts
    questions = [(ballot("q1", "Which?", given), given), (ballot("q2", "Who?", other), other)]
    return write_run(path, questions, trace=trace, calls=[usage("q1", 0, "judge")], config=config, facts=facts)


def test_a_system_of_any_name_with_steps_of_any_name_is_shown(tmp_path):
    truth = write_truth(tmp_path / "truth.csv", ("q1", "Red", ["a2024"]), ("q2", "Ann", ["a2024"]))
    page = page_of(own_run(tmp_path / "run"), truth)
    check_harmless(page)
    text = plain(page)
    assert "System found Models big (vllm) Questions 2" in text
    assert "metric score value n exact 0.5000 0.5000 2 Score = value." in text
    assert "reading 1 no member read the right value, though a document of the truth was found" in text
    one = question(page, "q1")
    assert "q1 right 2 of 2 members" in one
    assert "exact 1.000 value 1.00" in one
    assert "doubt 0.125 page tokens 12,000" in one
    assert 'Details {"because": ["<x>"]}' in one
    assert "Skim pages: 2 items 0 page one fast worth 0.5 1 page two a2024 page" in one
    assert "BM25 search, member 1, attempt 2: 1 item 0 red, surely" in one
    assert page.count('<details class="step" open>') == 2
    two = question(page, "q2")
    assert "q2 blank 2 of 2 members" in two
    assert "Prepare: 0 items with an error Error: no such page" in two
    assert "page tokens, as measured: median 12,000" in page
    for word in ("wattbot", "kaggle", "references 0", "abstention", "evidence:"):
        assert word not in text


def test_steps_that_count_their_items_are_a_funnel(tmp_path):
    answers = [answer("q1", 0, "41", refs=("r1",))]
    found = {"node_id": "a2024:sec0:p0:s1", "doc_id": "a2024"}
    trace = [
        item("q1", "find_much", note="in 400, out 40; off", scores={"in": 400.0, "out": 40.0}),
        *(item("q1", "find_much", rank, "x", note=ref, **found) for rank, ref in ((1, "R1"), (2, "r2"), (3, "r3"))),
        item("q1", "keep_few", note="in 40, out 10", scores={"in": 40.0, "out": 10.0}),
        item("q1", "keep_few", 1, "x", note="r1", **found),
        item("q1", "plan", 0, "a query"),
    ]
    run = write_run(tmp_path / "run", [(ballot("q1", "How much?", answers), answers)], trace=trace)
    page = page_of(run, write_truth(tmp_path / "truth.csv", ("q1", "41", ["r1", "r2"])))
    check_harmless(page)
    one = question(page, "q1")
    assert "step in out of the truth Find much off 400 40 2 of 2 Keep few 40 10 1 of 2" in one
    assert "width:100.0%" in page
    assert "width:25.0%" in page
    assert "Find much: 3 items in 400, out 40; off" in one
    assert one.count("cited") == 2
    assert one.count("in the truth") == 3


def test_a_system_that_is_not_installed_leaves_its_runs_readable(tmp_path):
    truth = write_truth(tmp_path / "truth.csv", ("q1", "Red", ["a2024"]))
    config = f"system: nowhere.to_be_found:SYSTEM\nquestions: {{path: {truth}}}\n"
    text = plain(page_of(own_run(tmp_path / "run", config)))
    assert "exact 1.0000 1.0000 1 Score = value. 1 questions of the run are not in the truth" in text
    text = plain(page_of(own_run(tmp_path / "gone", config, metrics=["nowhere.to_be_found:METRIC"])))
    assert "Nothing is scored: metric nowhere.to_be_found:METRIC" in text
    assert "q1 answered 2 of 2 members" in text


def test_errors_are_those_of_the_metric_that_has_classes(tmp_path):
    truth = small_truth(tmp_path / "truth.csv")
    page = page_of(small_run(tmp_path / "run", facts=FACTS | {"metrics": ["exact", "wattbot"]}), truth)
    text = plain(page)
    assert "exact 0.7500 0.7500 4 wattbot 0.7562 0.7500 0.6250 1.0000 4" in text
    assert "exact: value; wattbot: 0.75 value + 0.15 references + 0.10 abstention." in text
    assert "farther off than rounding 1 q2" in text
    assert "q3 right in part: reference mismatch" in question(page, "q3")
    assert "right in part (1)" in text


@pytest.mark.parametrize(
    ("baselines", "n", "said"),
    [
        (["extractive"], 1, "Answered by the extractive backend: no language model, but a baseline"),
        (["extractive"], 2, "Answered in part by the extractive backend (extractive): a baseline"),
        ([], 2, None),
    ],
)
def test_the_baseline_is_named_for_what_it_answered(tmp_path, baselines, n, said):
    text = plain(page_of(small_run(tmp_path / "run", facts=FACTS | {"baselines": baselines, "n_answering": n})))
    assert ("no language model" in text) == (n == 1)
    assert ("a baseline to compare" in text) == (said is not None)
    assert (said or "Run run") in text


def test_groups_of_the_published_vote_are_told_apart_by_spelling(tmp_path):
    given = [answer("q1", 0, "41"), answer("q1", 1, "41.0"), answer("q1", 2, "41")]
    config = CONFIG.replace("compat: null", "compat: kohakurag")
    vote = ballot("q1", "?", given, groups=["41", "41.0"])
    text = plain(page_of(write_run(tmp_path / "run", [(vote, given)], config=config)))
    assert "41 · weight 2, members 0, 2, wins" in text
    assert "41.0 · weight 1, member 1" in text


def test_groups_that_do_not_fit_the_members_name_nobody(tmp_path):
    given = [answer("q1", 0, "41"), answer("q1", 1, "41.0")]
    text = plain(page_of(write_run(tmp_path / "run", [(ballot("q1", "?", given, groups=["41", "x"]), given)])))
    assert "41 · weight 1 x · weight 0" in text


def test_a_run_of_no_questions_is_an_empty_page(tmp_path):
    text = plain(page_of(write_run(tmp_path / "run", []), small_truth(tmp_path / "truth.csv")))
    assert "4 questions of the truth are not in the run and score 0." in text


def test_a_run_under_way_says_so(tmp_path):
    page = page_of(small_run(tmp_path / "run", facts={"status": "running"}))
    assert "The run's status is running" in plain(page).replace("\u2019", "'")


@pytest.mark.parametrize("name", ["answers", "votes", "trace", "usage"])
def test_a_missing_table_is_named(tmp_path, name):
    run = small_run(tmp_path / "run")
    (run / f"{name}.parquet").unlink()
    with pytest.raises(DataError, match=rf"run holds no {name}\.parquet: the run has not finished"):
        write_report(str(run), None)


def test_a_damaged_table_is_named(tmp_path):
    run = small_run(tmp_path / "run")
    (run / "votes.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"votes\.parquet cannot be read"):
        write_report(str(run), None)


def test_a_table_of_another_version_is_named(tmp_path):
    run = small_run(tmp_path / "run")
    pq.write_table(pq.read_table(run / "answers.parquet").drop_columns(["seed"]), run / "answers.parquet")
    with pytest.raises(DataError, match=r"answers\.parquet: has no column seed; its columns are question_id, member"):
        write_report(str(run), None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.json", "{", r"run\.json cannot be read"),
        ("run.json", "[]", r"run\.json holds a list, not keys with values"),
        ("config.yaml", "a: [", r"config\.yaml cannot be read"),
        ("config.yaml", "!!python/object/apply:os.system ['true']", r"config\.yaml cannot be read"),
    ],
)
def test_a_damaged_fact_file_is_named(tmp_path, name, text, said):
    run = small_run(tmp_path / "run")
    (run / name).write_text(text)
    with pytest.raises(DataError, match=said):
        write_report(str(run), None)


def test_a_truth_that_is_not_there(small):
    with pytest.raises(DataError, match=r"gone\.csv: there is no such truth file: check the path"):
        write_report(str(small[0]), "gone.csv")


def test_an_output_that_cannot_be_written_leaves_nothing_behind(small, tmp_path):
    target = tmp_path / "page.html"
    target.mkdir()
    with pytest.raises(DataError, match=r"page\.html: cannot be written \(Is a directory\)"):
        write_report(str(small[0]), None, str(target))
    assert list(tmp_path.iterdir()) == [target]


def test_importing_the_room_loads_nothing_heavy():
    code = (
        "import sys, kohaku_ray.pages.report, kohaku_ray.pages.index_map, kohaku_ray.pages.sweep_page;"
        "print(sorted({'ray', 'torch', 'faiss', 'matplotlib', 'scipy', 'umap'} & set(sys.modules)),"
        " [name for name in sys.modules if name.startswith(('kohaku_ray.engine', 'kohaku_ray.config'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
