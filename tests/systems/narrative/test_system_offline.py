"""The offline judge, results.csv, votes' confidence, and gold that reaches nothing: all stories, whole, without Ray."""

import asyncio
import csv
import io
import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows
from systems.narrative.stories import INDEX, judged, offline, prepared, rows_of, stories, tools_for

from kohaku_ray.errors import KohakuRayError
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.records import Reply
from kohaku_ray.systems.base import AnsweredQuestion
from kohaku_ray.systems.narrative import SYSTEM
from kohaku_ray.systems.narrative.dossier import find_quote, judgement_schema, read_judgement, results_csv
from kohaku_ray.systems.narrative.label import CONSISTENT, CONTRADICT
from kohaku_ray.systems.narrative.offline import CONFIDENCE, OfflineJudge

STORIES = stories()


def asked(role, similarity="0.80", findings=()):
    variables = {
        "role": role,
        "claims": ({"text": "He slept.", "similarity": similarity, "ref_id": "c0"},),
        "passages": ({"ref_id": "c0", "where": "I", "text": "It rained. He slept\nwell. He rose."},),
        "findings": findings,
        "n_claims": 2,
        "n_facts": 5,
    }
    request = ChatRequest("m", (("user", "x"),), 0.0, 1.0, 500, 42, None, "s", variables)
    return json.loads(asyncio.run(OfflineJudge().chat(request)).text)


# ---- the offline judge


@pytest.mark.parametrize("role", ["search", "verify"])
def test_a_finding_is_a_contradiction(role):
    finding = {"rule": "r", "claim": "c", "excerpt": "He rose.", "reason": "why", "ref_id": "c0"}
    answer = asked(role, findings=(finding, finding))
    assert (answer["label"], answer["confidence"]) == (CONTRADICT, CONFIDENCE)
    assert answer["excerpts"][0] == {"node_id": "c0", "quote": "He rose.", "claim": "c", "analysis": "why"}


def test_its_texts_are_as_short_as_a_models():
    long = {"rule": "r", "claim": "he " * 99, "excerpt": "He rose " * 99, "reason": "why " * 99, "ref_id": "c0"}
    answer = asked("search", findings=(long,) * 9)
    jsonschema.validate(answer, judgement_schema(["c0"]))
    assert answer["excerpts"][0]["quote"] == ("He rose " * 99)[:256]


@check_rows(
    ("role", "similarity", "label", "confidence"),
    [
        ("search", "0.80", CONSISTENT, 0.8),
        ("search", "0.40", CONSISTENT, 0.5),
        ("search", "0.35", CONSISTENT, 0.5),
        ("search", "0.34", CONTRADICT, 0.66),
        ("search", "-0.20", CONTRADICT, 1.0),
        ("verify", "0.10", CONSISTENT, 0.5),
    ],
)
def test_without_findings_similarity_decides_in_stage_one_alone(role, similarity, label, confidence):
    answer = asked(role, similarity=similarity)
    assert (answer["label"], answer["confidence"]) == (label, confidence)
    assert "no language model: the rules found nothing, so similarity alone decides" in answer["rationale"]
    assert answer["excerpts"][0]["quote"] == "He slept\nwell."  # the sentence most like the claim, verbatim


def test_what_it_decides_by_stands_in_the_messages():
    """Equal messages are one ledger key: a reply may depend on nothing that they do not hold."""
    for key in ("46", "137"):
        tools = tools_for()
        judged(STORIES[key], tools)
        prompt = tools.sent[0].prompt
        for claim in prompt.variables["claims"]:
            assert f"{claim['text']} ({claim['ref_id']}, {claim['similarity']})" in prompt.user
        for variable in prompt.variables["findings"]:
            assert f"{variable['rule']}: {variable['reason']}" in prompt.user


@pytest.mark.parametrize("key", ["46", "137", "007", "9"])
def test_whole_stories_follow_its_own_schema_and_the_book(key):
    tools = tools_for()
    judgement = judged(STORIES[key], tools)
    for call in tools.sent:
        jsonschema.validate(json.loads(asyncio.run(offline(call)).text), call.schema)
    assert judgement.prediction.error is None
    texts = {INDEX.node_id(row): INDEX.text_of(row) for row in range(len(INDEX))}
    quoted = [row for row in rows_of(judgement, "dossier") if row.node_id]
    assert quoted
    assert all(row.text in texts[row.node_id] for row in quoted)
    assert judgement.measures["misquoted"] == 0
    assert judgement.prediction.answer_value == (CONTRADICT if key == "137" else CONSISTENT)


def test_without_findings_the_rationale_says_how_much_the_rules_read():
    rationale = asked("search")["rationale"]
    assert rationale.endswith("The rules read 2 dated or placed claims of the story and 5 of the book.")


# ---- the columns of a vote


def test_the_submission_counts_claims_and_findings():
    judgement = judged(STORIES["137"])
    answers = [{"measures": {}}, {"measures": judgement.measures}]
    counts = {name: SYSTEM.extra_columns[name]({}, answers) for name in ("claims", "findings")}
    assert counts == {"claims": "1", "findings": "3"}
    assert judgement.measures["facts"] == 4
    details = json.loads(judgement.details)
    assert [claim["kind"] for claim in details["claims"]] == ["died"]
    assert {fact["deed"] or fact["kind"] for fact in details["facts"]} == {"born", "arrested", "freed", "travelled"}
    assert SYSTEM.extra_columns["claims"]({}, answers[:1]) == ""


def test_confidence_is_the_mean_probability_of_the_voted_label():
    given = ((CONTRADICT, 0.9), (CONSISTENT, 0.7), ("", None), ("0", 0.8))
    members = [{"answer_value": label, "is_blank": not label, "measures": {"confidence": n}} for label, n in given]
    write = SYSTEM.extra_columns["confidence"]
    assert write({"answer_value": CONTRADICT, "is_blank": False}, members) == f"{(0.9 + 0.3 + 0.8) / 3:.4f}"
    assert write({"answer_value": "", "is_blank": True}, members[2:3]) == ""


UNJUDGED = "Not judged, so taken as consistent: silence is no contradiction."


def test_results_have_the_asked_columns_and_exact_ids():
    given = [("007", CONSISTENT, 0.8, None), ("1", CONTRADICT, 0.9, None), ("10", "", None, "no such book")]
    answers = [
        {
            "question_id": key,
            "answer_value": label,
            "is_blank": not label,
            "error": error,
            "measures": {"confidence": n},
        }
        for key, label, n, error in given
    ]
    explanations = {"007": 'He said "no",\nthen yes.', "1": "Why."}
    votes = [
        {"question_id": key, "answer_value": label, "is_blank": not label, "explanation": explanations.get(key, "")}
        for key, label in (*((item[0], item[1]) for item in given), ("11", ""))
    ]
    answers_of = {row["question_id"]: [row] for row in answers}
    file = io.StringIO(newline="")
    results_csv([AnsweredQuestion(vote, answers_of.get(vote["question_id"], []), []) for vote in votes], file)
    assert list(csv.reader(io.StringIO(file.getvalue()))) == [
        ["Story ID", "Prediction", "Rationale", "Confidence"],
        ["007", "1", 'He said "no",\nthen yes.', "0.8000"],
        ["1", "0", "Why.", "0.9000"],
        ["10", "1", f"{UNJUDGED} no such book", ""],
        ["11", "1", UNJUDGED, ""],
    ]


# ---- gold


def run_all(questions):
    """Everything a run of these questions writes: prompts, keys, traces, answers."""
    tools, written = tools_for(), []
    for question_id, question in questions.items():
        try:
            evidence, judgement = prepared(question, tools), judged(question, tools)
        except KohakuRayError as error:
            written.append((question_id, str(error)))
            continue
        written.append((evidence, judgement))
    requests = [ChatRequest("m", call.prompt.messages, 0, 1, 9, 42, call.schema) for call in tools.sent]
    return written, [request_key(request) for request in requests], repr([call.prompt for call in tools.sent])


def test_flipped_labels_change_nothing_to_the_byte():
    kept, flipped = run_all(STORIES), run_all(stories(flip=True))
    assert repr(kept) == repr(flipped)
    assert len(kept[1]) >= 4
    assert stories(flip=True) == STORIES


# ---- hostile text


@given(st.text(max_size=80), st.text(max_size=200))
def test_a_quotation_is_found_in_the_text_or_not_at_all(quote, text):
    quotation = find_quote(quote, text)
    assert quotation is None or quotation in text
    if len(quote.split()) == 1:
        assert find_quote(quote.strip(), f"a {quote.strip()} b") is not None or not quote.strip()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {}, optional={"label": JSON | st.just("1"), "confidence": JSON, "excerpts": JSON, "rationale": JSON}
)
PASSAGES = prepared(STORIES["46"]).passages


@given(st.text(max_size=60) | FIELDS.map(json.dumps) | JSON.map(json.dumps))
def test_no_reply_raises(text):
    judgement = read_judgement(Reply(text), PASSAGES)
    assert isinstance(judgement, str) or (
        judgement.label in (CONSISTENT, CONTRADICT) and 0 <= judgement.confidence <= 1
    )
