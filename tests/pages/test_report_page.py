import json
import random
import shutil
from dataclasses import replace
from string import ascii_letters
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from kit.installed import loaded_after
from pages import Tags, check_harmless, page_of, plain, question
from run_files import (
    CONFIG,
    FACTS,
    answer,
    ballot,
    index,
    item,
    match,
    own_run,
    small_run,
    small_truth,
    write_run,
    write_truth,
)

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.paired import paired_bootstrap
from kohaku_ray.pages import report as report_module
from kohaku_ray.pages.glance import Coverage
from kohaku_ray.pages.questions import PageLimits
from kohaku_ray.pages.report import LIMITS, gather, view_run, write_report
from kohaku_ray.runs.files import read_run
from kohaku_ray.store.tables import SCHEMAS


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small")
    run = small_run(path / "run")
    index(run / "index", "a2024", "b2025")
    return run, small_truth(path / "truth.csv")


@pytest.fixture(scope="module")
def page(small):
    return page_of(*small)


def view(run, truth=None, limits=LIMITS[0]):
    """The views that the page is made from: of the run, and of its questions by id."""
    inputs = gather(read_run(str(run)), truth and str(truth))
    views = list(inputs.views(limits))
    return SimpleNamespace(**view_run(inputs, views, min(len(views), limits.questions))), {
        view.vote["question_id"]: view for view in views
    }


def rows(step):
    """Rank, text, note and scores of a step's items."""
    return [(item.row["rank"], item.row["text"], item.row["note"], item.row["scores"]) for item in step.items]


def test_the_page_needs_nothing_beside_it_and_runs_nothing(page):
    check_harmless(page)
    policy = next(dict(a)["content"] for t, a in Tags(page).tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "@import" not in page
    assert "url(http" not in page


def test_the_views_of_a_run_are_its_figures(small):
    whole, questions = view(*small)
    assert [(record["metric"], record["score"], record["value"]) for record in whole.report.records] == [
        ("wattbot", pytest.approx(0.75625), 0.75),
        ("kaggle", pytest.approx(whole.scores[1].score), 0.75),
    ]
    interval = paired_bootstrap([1.0, 0.1, 0.925, 1.0])
    assert (whole.scores[0].low, whole.scores[0].high) == pytest.approx((interval.low, interval.high))
    assert whole.covered == Coverage(answered=3, abstained=1, rightly=1, failed=0)
    assert whole.calls.rows == (("answer", 13, 0, 0), ("plan", 0, 1, 0))
    assert [(lead.n, lead.href) for lead in whole.leads] == [
        *((1, f"#show:{value}") for value in ("mark=error", "cause=vote", "cause=references+or+other+parts")),
        *((1, "#show:agree=split"), (1, "#q-q2")),
    ]
    assert [(cause.name, [(name, len(of)) for name, _, of in cause.classes]) for cause in whole.causes] == [
        ("vote", [("value selection", 1)]),
        ("references or other parts", [("reference mismatch", 1)]),
    ]
    assert [chart.title for chart in whole.charts] == [
        *("Score parts", "Answer agreement", "Tokens per answer", "Attempts used")
    ]
    assert [(question.outcome, question.colour, question.n_winners) for question in questions.values()] == [
        ("right", "right", 3),
        ("wrong", "wrong", 2),
        ("right in part", "part", 3),
        ("blank", "good-blank", 3),
    ]
    assert [(group.value, group.weight, group.members) for group in questions["q2"].groups] == [
        ("7", 2, (0, 2)),
        ("52", 1, (1,)),
    ]
    evidence = questions["q1"].steps[1].items
    assert evidence[0].path == ("Report", "Load", "paragraph 0", "sentence 1")
    assert (evidence[0].page, evidence[0].is_cited, evidence[0].is_gold) == (4, True, True)


def test_the_interval_of_a_page_takes_the_questions_of_a_cluster_as_one(small, tmp_path):
    """q1 and q3 cite a2024, q2 b2025, q4 none: three clusters."""
    run = shutil.copytree(small[0], tmp_path / "run")
    shown = page_of(run, small[1], cluster="ref_id")
    assert "(bootstrap over 3 clusters of them)" in shown
    assert "(bootstrap over questions)" in page_of(*small)
    noted = json.loads((run / "scores.json").read_text())["scores"][0]
    interval = paired_bootstrap([1.0, 0.1, 0.925, 1.0], clusters=["a", "b", "a", "none"])
    assert noted["cluster"] == "ref_id"
    assert (noted["low"], noted["high"]) == pytest.approx((interval.low, interval.high))
    with pytest.raises(DataError, match=r"has no column ref; its columns are .*ref_id"):
        write_report(str(run), str(small[1]), cluster="ref")


def test_what_is_counted_of_a_question_does_not_depend_on_whether_it_is_shown(small, tmp_path):
    """Beyond the questions that are shown no step is read: where a point is lost is told from columns."""
    given = {key: [answer(key, 0, "7", refs=("a2024",))] for key in ("q1", "q2", "q3", "q4")}
    trace = [match("q1"), match("q2", node_id="b2025:sec0:p0:s1", doc_id="B2025"), item("q3", "plan", 0, "a query")]
    trace += [match("q4", node_id="b2025:sec0:p0:s1", doc_id="B2025")]
    questions = [(ballot(key, "?", rows), rows) for key, rows in given.items()]
    run = write_run(tmp_path / "run", questions, trace=trace)
    # one form of an id (34.10): its first letter is of full width
    truth = write_truth(tmp_path / "truth.csv", *((key, "977" if key == "q4" else "41", ["ｂ2025"]) for key in given))
    for run_and_truth in (small, (run, truth)):
        whole, shown = view(*run_and_truth)
        fewer, few = view(*run_and_truth, limits=replace(LIMITS[0], questions=1))
        assert [each.cause for each in few.values()] == [each.cause for each in shown.values()]
        assert fewer.covered == whole.covered
        assert [(cause.name, cause.n) for cause in fewer.causes] == [(cause.name, cause.n) for cause in whole.causes]
        assert [len(each.steps) > 0 for each in few.values()] == [True] + [False] * (len(few) - 1)
    assert [each.cause for each in few.values()] == ["retrieval", "reading", "reading", "no shown text"]


def test_rows_that_do_not_stand_by_question_are_refused(small, tmp_path):
    shutil.copytree(small[0], tmp_path / "run")
    answers = pq.read_table(tmp_path / "run" / "answers.parquet")
    pq.write_table(answers.take(list(range(len(answers)))[::-1]), tmp_path / "run" / "answers.parquet")
    with pytest.raises(DataError, match=r"answers\.parquet of .*: the rows of question q3 do not stand together"):
        write_report(str(tmp_path / "run"))


def test_the_list_filters_by_outcome_agreement_cause_and_class(small, page):
    selects = {name: {value: n for value, _, n in options} for name, _, options in view(*small)[0].selects}
    assert selects == {
        "mark": {"": 4, "right": 3, "part": 1, "wrong": 1, "blank": 1, "error": 1},
        "agree": {"": 4, "all": 3, "split": 1},
        "cause": {"": 4, "vote": 1, "references or other parts": 1},
        "error": {"": 4, "value selection": 1, "reference mismatch": 1},
    }
    cards = [attributes for _, attributes in Tags(page).tags if "q" in attributes.get("class", "").split()]
    for name, counts in selects.items():
        for value, n in counts.items():
            assert not value or sum(value in card[f"data-{name}"].split("|") for card in cards) == n


def test_without_a_truth_there_are_no_scores(small, tmp_path):
    whole, questions = view(small[0])
    assert (whole.report, whole.scores, whole.why_unscored) == (None, [], "No truth was given, so nothing is scored.")
    assert questions["q1"].outcome == "answered"
    page = page_of(small[0], output=str(tmp_path / "page.html"))
    assert "No truth was given, so nothing is scored." in page
    assert "<h2>Scores</h2>" not in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,question,answer_value,ref_id\nq1,?,,\n", "truth.csv has no gold answers."),
        ("id,question\nq1,?\n", "truth.csv has no gold answers: it has no column answer_value, ref_id"),
    ],
)
def test_questions_without_gold_are_no_truth(small, tmp_path, text, message):
    file = tmp_path / "truth.csv"
    file.write_text(text)
    assert view(small[0], file)[0].why_unscored.startswith(f"Nothing is scored: {message}")


def test_rows_that_do_not_meet_are_counted(small, tmp_path):
    truth = write_truth(tmp_path / "truth.csv", ("q1", "41", ["a2024"]), ("q9", "1", ["a2024"]))
    whole, questions = view(small[0], truth)
    assert whole.odd == [
        "run: 1 missing, scored 0 and not compared: q9",
        "run: 3 not in the truth, not scored: q2, q3, q4",
    ]
    assert questions["q2"].outcome == "answered"
    empty = view(write_run(tmp_path / "run", []), small_truth(tmp_path / "small.csv"))[0]
    assert empty.odd == ["run: 4 missing, scored 0 and not compared: q1, q2, q3, q4"]


def test_without_the_index_matches_stand_alone(tmp_path):
    whole, questions = view(small_run(tmp_path / "run"))
    assert "matches are shown without their paragraphs: there is no index at" in whole.notes[-1]
    evidence = questions["q1"].steps[1].items[0]
    assert evidence.path == ("a2024", "sec0", "p0", "s1")
    assert (evidence.excerpt.match, evidence.excerpt.is_whole) == ("The hall drew 41 MW in May.", True)


def test_a_document_that_the_index_has_not_is_no_loss_of_retrieval(tmp_path):
    run = small_run(tmp_path / "run")
    truth = write_truth(tmp_path / "t.csv", ("q1", "99", ["gone2024"]), ("q2", "9", ["b2025"]), ("q3", "9", ["a2024"]))
    for here, causes in ((False, {"q1": "retrieval"}), (True, {"q1": "not in the index"})):
        if here:
            index(tmp_path / "run/index", "a2024", "b2025")
        whole, questions = view(run, truth)
        assert {key: questions[key].cause for key in causes} == causes
    notes = {cause.name: cause.note for cause in whole.causes}
    assert notes["not in the index"].startswith("no document of the truth is in the index: it was rejected")


def test_evidence_is_limited_and_shared_by_a_questions_lists(tmp_path):
    trace = [match("q1", rank, attempt=attempt) for attempt in (0, 2) for rank in range(30)]
    steps = view(small_run(tmp_path / "run", trace=trace))[1]["q1"].steps
    assert [(step.rows.attempt, len(step.items), len(step.rows.items)) for step in steps] == [(0, 10, 30), (2, 10, 30)]


def test_figures_of_a_whole_run_are_shown_with_the_gold_of_their_metric(tmp_path):
    given = [[answer(key, 0, value)] for key, value in (("q1", "consistent"), ("q2", "contradict"))]
    facts = {**FACTS, "metrics": ["label"], "split_by": ["book"]}
    run = write_run(
        tmp_path / "run", [(ballot(item[0]["question_id"], "?", item), item) for item in given], facts=facts
    )
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


def test_a_page_that_would_be_too_large_shows_less(tmp_path, monkeypatch):
    limits = (PageLimits(9, 9, 25_000, 50, 5000), PageLimits(2, 1, 30, 5, 50))
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


def test_a_system_of_any_name_with_steps_of_any_name_is_shown(tmp_path):
    truth = write_truth(tmp_path / "truth.csv", ("q1", "Red", ["a2024"]), ("q2", "Ann", ["a2024"]))
    run = own_run(tmp_path / "run")
    whole, questions = view(run, truth)
    header = dict(whole.header)
    assert (header["System"], header["Models"], whole.formulas) == ("found", "big (vllm)", "Score = value.")
    assert [(cause.name, cause.n) for cause in whole.causes] == [("reading", 1)]
    first, second = questions["q1"], questions["q2"]
    assert [(step.title, step.rows.member, step.rows.attempt) for step in first.steps] == [
        ("Skim pages", -1, 0),
        ("BM25 search", 1, 2),
    ]
    assert rows(first.steps[0]) == [(0, "page one", "fast", {"worth": 0.5}), (1, "page two", "", {})]
    assert (second.outcome, second.steps[0].items, second.steps[0].rows.errors) == ("blank", (), ("no such page",))
    page = page_of(run, truth)
    check_harmless(page)
    text = plain(page)
    for phrase in ("doubt 0.125 page tokens 12,000", 'Details {"because": ["<x>"]}', "1 page two a2024 page"):
        assert phrase in text
    assert "page tokens, as measured: median 12,000" in page
    for word in ("wattbot", "kaggle", "references 0", "abstention", "evidence:"):
        assert word not in text


def test_steps_that_count_their_items_are_a_funnel(tmp_path):
    answers = [answer("q1", 0, "41", refs=("r1",))]
    node = {"node_id": "a2024:sec0:p0:s1", "doc_id": "a2024"}
    trace = [
        item("q1", "find_much", note="in 400, out 40; off", scores={"in": 400.0, "out": 40.0}),
        *(item("q1", "find_much", rank, "x", note=ref, **node) for rank, ref in ((1, "R1"), (2, "r2"), (3, "r3"))),
        item("q1", "keep_few", note="in 40, out 10", scores={"in": 40.0, "out": 10.0}),
        item("q1", "keep_few", 1, "x", note="r1", **node),
        item("q1", "plan", 0, "a query"),
    ]
    run = write_run(tmp_path / "run", [(ballot("q1", "How much?", answers), answers)], trace=trace)
    truth = write_truth(tmp_path / "truth.csv", ("q1", "41", ["r1", "r2"]))
    shown = view(run, truth)[1]["q1"]
    funnel = [(step.title, step.note, step.n_gold, step.share, len(step.items)) for step in shown.funnel]
    assert funnel == [("Find much", "off", 2, 1.0, 3), ("Keep few", "", 1, 0.25, 1)]
    items = [each for step in shown.steps for each in step.items]
    assert (sum(each.is_cited for each in items), sum(each.is_gold for each in items)) == (2, 3)
    page = page_of(run, truth)
    check_harmless(page)
    assert "step in out of the truth Find much off 400 40 2 of 2 Keep few 40 10 1 of 2" in question(page, "q1")


def test_a_system_that_is_not_installed_leaves_its_runs_readable(tmp_path):
    truth = write_truth(tmp_path / "truth.csv", ("q1", "Red", ["a2024"]))
    config = f"system: nowhere.to_be_found:SYSTEM\nquestions: {{path: {truth}}}\n"
    text = plain(page_of(own_run(tmp_path / "run", config)))
    assert "exact 1.0000 1.0000 1 Score = value. run: 1 not in the truth, not scored: q2." in text
    whole, questions = view(own_run(tmp_path / "gone", config, metrics=["nowhere.to_be_found:METRIC"]), truth)
    assert whole.why_unscored.startswith("Nothing is scored: metric nowhere.to_be_found:METRIC")
    assert questions["q1"].outcome == "answered"


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({"n_answering": 1}, "Answered by the extractive backend: no language model, but a baseline"),
        ({"n_answering": 2}, "Answered in part by the extractive backend (extractive): a baseline"),
        ({"baselines": [], "n_answering": 2}, "The index cannot be read"),
        ({"status": "running"}, "The run's status is running"),
    ],
)
def test_the_first_note_says_what_a_reader_must_know(tmp_path, facts, note):
    assert view(small_run(tmp_path / "run", facts=FACTS | facts))[0].notes[0].startswith(note)


@pytest.mark.parametrize(
    ("compat", "groups", "members"),
    [
        ("kohakurag", ["41", "41.0"], [(0, 2), (1,)]),  # the published vote tells spellings apart
        ("null", ["41", "x"], [(), ()]),  # these do not fit the members, and name nobody
    ],
)
def test_groups_have_the_members_that_the_vote_gave_them(tmp_path, compat, groups, members):
    given = [answer("q1", 0, "41"), answer("q1", 1, "41.0"), answer("q1", 2, "41")]
    config = CONFIG.replace("compat: null", f"compat: {compat}")
    run = write_run(tmp_path / "run", [(ballot("q1", "?", given, groups=groups), given)], config=config)
    assert [group.members for group in view(run)[1]["q1"].groups] == members


def torn(run):
    (run / "votes.parquet").write_bytes(b"PAR1 torn")


def old(run):
    pq.write_table(pq.read_table(run / "answers.parquet").drop_columns(["seed"]), run / "answers.parquet")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((f"{name}.parquet", rf"run holds no {name}\.parquet: the run has not finished") for name in SCHEMAS),
        (torn, r"votes\.parquet cannot be read"),
        (old, r"answers\.parquet: has no column seed; its columns are question_id, member"),
        (("run.json", "{"), r"run\.json cannot be read"),
        (("run.json", "[]"), r"run\.json holds a list, not keys with values"),
        (("config.yaml", "a: ["), r"config\.yaml cannot be read"),
        (("config.yaml", "!!python/object/apply:os.system ['true']"), r"config\.yaml cannot be read"),
    ],
)
def test_a_damaged_or_missing_file_is_named(tmp_path, damage, message):
    run = small_run(tmp_path / "run")
    if callable(damage):
        damage(run)
    elif isinstance(damage, str):
        (run / damage).unlink()
    else:
        (run / damage[0]).write_text(damage[1])
    with pytest.raises(DataError, match=message):
        write_report(str(run), None)


def test_a_truth_that_is_not_there(small):
    with pytest.raises(DataError, match=r"gone\.csv: there is no such truth file: check the path"):
        write_report(str(small[0]), "gone.csv")


def test_importing_the_room_loads_nothing_heavy():
    room = "import kohaku_ray.pages.report, kohaku_ray.pages.index_map, kohaku_ray.pages.sweep_page"
    heavy = ("ray", "torch", "faiss", "matplotlib", "scipy", "umap", "kohaku_ray.engine", "kohaku_ray.config")
    assert not loaded_after(room, *heavy)
