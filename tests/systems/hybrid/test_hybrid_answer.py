import asyncio
import csv
import io
import json
from collections import Counter
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from systems.hybrid.press import QUESTION, settings, tools_for

from kohaku_ray.ensemble.vote import VoteRule, vote
from kohaku_ray.errors import ContextOverflowError
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.models.summary import describe_flags
from kohaku_ray.records import Prediction, Question, Reply
from kohaku_ray.systems.base import AnsweredQuestion
from kohaku_ray.systems.hybrid import SYSTEM, answer
from kohaku_ray.systems.hybrid.answer import NO_INFORMATION, WORDS, ballot, read_reply
from kohaku_ray.systems.hybrid.stages import HybridEvidence, Text

A = Text("d:s:p0", "digue", "paragraph", "412 ont fui.", "1002", "ouest.example", "2024-01-12", "https://o/d", "Digue")
B = Text("e:s:p0", "copie", "paragraph", "On parle de [1002 / x / y] ; 400.", "1004", None, "", "", "Copie")
MARK_A, MARK_B = A.mark, B.mark
EVIDENCE = HybridEvidence(QUESTION, (QUESTION.text,), (A, B), measures={"texts": 2.0}, warning="only 2 texts")


def reply(answer=f"412 habitants {MARK_A}.", value="412", refs=("1002",), **fields):
    body = {"explanation": f"{MARK_A} : 412.", "answer": answer, "answer_value": value, "answer_unit": "habitants"}
    return json.dumps(body | {"ref_id": list(refs), "is_blank": False} | fields)


def answered(*script, evidence=EVIDENCE, **changed):
    left = iter(script)
    tools = tools_for(lambda call: next(left))
    return asyncio.run(answer(evidence, tools, settings(**changed))), tools


def read(text, question=QUESTION, finish_reason="stop"):
    return read_reply(Reply(text, finish_reason=finish_reason), question, (A, B), 0)[0]


@pytest.mark.parametrize(("n_texts", "is_few"), [(1, True), (2, True), (3, False)])
def test_an_answer_from_few_texts_is_flagged_for_terminal_and_page(n_texts, is_few):
    texts = tuple(A._replace(ref_id=f"100{number}") for number in range(2, 2 + n_texts))
    answer, _ = answered(reply(), evidence=replace(EVIDENCE, texts=texts))
    assert ("few_sources" in answer.prediction.flags) == is_few
    lines = describe_flags(Counter(answer.prediction.flags), 1)
    assert ("1 of 1 answers rest on a context of fewer than three texts" in lines) == is_few


def test_no_text_at_all_is_said_by_the_answer_and_not_flagged():
    answer, _ = answered(evidence=replace(EVIDENCE, texts=()))
    assert (answer.prediction.answer, answer.prediction.flags) == (NO_INFORMATION, ())


def test_the_prompt_heads_each_text_with_its_mark_and_constrains_the_ids():
    _, tools = answered(reply())
    [call] = tools.sent
    assert f"{MARK_A} Digue\n412 ont fui." in call.prompt.user
    assert "[1004 / ? / ?] Copie\nOn parle de (1002 / x / y) , 400." in call.prompt.user
    assert call.schema["properties"]["ref_id"]["items"]["enum"] == ["1002", "1004"]
    assert call.prompt.user.count("\n[1002 / ") == 1  # no text can pose as another's heading


def test_an_answer_cites_what_it_was_shown():
    answer, _ = answered(reply(f"412 {MARK_A}, 400 ailleurs {MARK_B} [77 / faux / 2020]."))
    prediction = answer.prediction
    assert prediction.answer == f"412 {MARK_A}, 400 ailleurs {MARK_B}."
    assert prediction.ref_ids == ("1002", "1004")
    assert prediction.n_foreign_refs == 1
    assert (prediction.answer_value, prediction.answer_unit) == ("412", "habitants")
    details = json.loads(answer.details)
    assert details["citations_cut"] == ["[77 / faux / 2020]"]
    assert [source["mark"] for source in details["sources"]] == [MARK_A, MARK_B]
    assert details["warning"] == "only 2 texts"
    assert details["cross_encoder"] == "cosine, no cross-encoder"
    assert answer.measures == {
        "texts": 2,
        "shown": 2,
        "citations": 2,
        "citations_cut": 1,
        "cited_netlocs": 2,
    }
    assert [(row.note, row.text) for row in answer.trace] == [
        (MARK_A, ""),
        (MARK_B, ""),
        ("not in the context, cut out", "[77 / faux / 2020]"),
    ]


def test_without_texts_no_model_is_asked():
    nothing = HybridEvidence(QUESTION, (QUESTION.text,), (), "the best score is 0.1, min_relevance is 0.6")
    answer, tools = answered(evidence=nothing)
    assert tools.sent == []
    assert answer.prediction == Prediction(
        answer=NO_INFORMATION, answer_unit="habitants", explanation="the best score is 0.1, min_relevance is 0.6"
    )
    assert answer.reply is None


def test_an_answer_in_words_is_no_blank():
    assert read(reply("Elle a cédé [1002].", value="texte")).answer_value == WORDS
    empty = read(reply("Elle a cédé [1002].", value=""))
    assert (empty.is_blank, empty.answer_value, empty.ref_ids) == (False, WORDS, ("1002",))


@pytest.mark.parametrize(
    "text",
    [
        reply("x", "is_blank", ()),
        reply("", "412", (), is_blank=True),
        reply("", "412"),
        reply("x [1002]", "Non précisé"),
    ],
)
def test_a_model_may_abstain(text):
    prediction = read(text)
    assert (prediction.is_blank, prediction.answer_value, prediction.ref_ids) == (True, "", ())
    assert prediction.error is None


@pytest.mark.parametrize(
    ("answer", "value", "refs", "is_blank"),
    [
        ("Une digue.", "la digue", (), True),  # neither cited nor in a text
        ("Une digue.", "digue", (), False),
        ("Une digue [1002].", "la digue", (), False),
        ("Une digue [1002].", "le viaduc", (), True),
        ("Elle a cédé.", "texte", (), True),
        ("Elle a cédé [1002].", "None", (), True),
    ],
)
def test_the_texts_shown_decide_whether_a_value_in_words_is_an_answer(answer, value, refs, is_blank):
    assert read(reply(answer, value, refs)).is_blank == is_blank


def test_values_are_written_bare():
    assert read(reply(value="1 412,5 habitants")).answer_value == "1412.5"
    money = Question("q", "Combien ?", answer_unit="millions d'euros")
    assert read(reply(value="9,6 millions d'euros"), money).answer_value == "9.6"


def test_prose_that_cites_is_an_answer():
    answer, _ = answered(f"<think>rien [99 / x / y]</think>Selon la presse, 412 {MARK_A} et [99 / x / y].")
    assert answer.prediction.answer == f"Selon la presse, 412 {MARK_A} et."
    assert (answer.prediction.answer_value, answer.prediction.ref_ids) == (WORDS, ("1002",))
    assert json.loads(answer.details)["citations_cut"] == ["[99 / x / y]"]
    assert answer.prediction.n_foreign_refs == 1


def test_prose_that_refuses_is_blank_and_other_prose_is_unreadable():
    refused = read("Les textes fournis ne permettent pas de répondre.")
    assert (refused.is_blank, refused.error) == (True, None)
    assert "no JSON object of an answer" in read("Bonjour !").error
    assert "was cut at" in read(f"412 {MARK_A}", finish_reason="length").error


def test_what_cannot_be_read_is_asked_again_with_another_seed():
    answer, tools = answered("Bonjour !", reply())
    assert [call.attempt for call in tools.sent] == [0, 1]
    assert (answer.prediction.answer_value, answer.prediction.attempt) == ("412", 1)
    failed, tools = answered("Bonjour !", "Rien.")
    assert len(tools.sent) == 2
    assert failed.prediction.error is not None
    assert failed.prediction.is_blank


def test_a_refused_length_is_met_with_the_better_half():
    answer, tools = answered(ContextOverflowError("too long"), reply(refs=("1002", "1004")))
    assert [len(call.prompt.variables["texts"]) for call in tools.sent] == [2, 1]
    assert answer.prediction.ref_ids == ("1002",)
    assert answer.measures["shown"] == 1
    failed, _ = answered(ContextOverflowError("too long"), ContextOverflowError("too long"))
    assert (failed.prediction.error, failed.prediction.answer_unit) == ("ContextOverflowError: too long", "habitants")


@given(st.text(st.sampled_from('{}[]":,/ ;1002abé\n') | st.characters(), max_size=300))
def test_any_reply_is_read(text):
    prediction = read(text)
    assert set(prediction.ref_ids) <= {"1002", "1004"}
    assert prediction.is_blank == (prediction.answer_value == "")
    json.dumps(asdict(prediction))


def row(answer, refs=("1002",), value=WORDS, **fields):
    return asdict(Prediction(answer=answer, answer_value=value, ref_ids=tuple(refs), is_blank=False)) | fields


def test_a_ballot_of_words_counts_by_its_numbers_without_those_of_citations():
    assert ballot(row(f"412 habitants et 60 cm {MARK_A}.")).answer_value == "60; 412"
    assert ballot(row("60,0 cm d'eau et 412 évacués, 412")).answer_value == "60; 412; 412"
    assert ballot(row("Elle a cédé.")).answer_value == WORDS
    assert ballot(row("412", value="412")).answer_value == "412"
    assert ballot(asdict(Prediction(answer="412"))).answer_value == ""


def test_members_vote_by_citations_then_by_numbers():
    rows = [
        row(f"412 évacués {MARK_A}.", ("1002", "1004")),
        row("400 évacués.", ("1002",)),
        row("Il y eut 412 évacués.", ("1004", "1002")),
        row("300 évacués.", ("1002", "1004")),
    ]
    verdict = vote([ballot(row) for row in rows], VoteRule(strategy="ref_priority"))
    assert (verdict.answer_value, verdict.ref_ids, verdict.winner) == ("412", ("1002", "1004"), 0)


def test_retrieved_is_a_submission_of_the_shown_texts(tmp_path):
    trace = [
        {"question_id": "q1", "step": "final_ranking", "node_id": None, "note": "in 2, out 2"},
        {"question_id": "q1", "step": "final_ranking", "node_id": "n", "note": "1002"},
        {"question_id": "q1", "step": "final_ranking", "node_id": "m", "note": "10,04"},
        {"question_id": "q1", "step": "mmr", "node_id": "m", "note": "9"},
    ]
    votes = [{"question_id": "q1", "answer_value": "4, et 5"}, {"question_id": "q2", "answer_value": ""}]
    questions = [AnsweredQuestion(vote, [], rows) for vote, rows in zip(votes, (trace, []), strict=True)]
    with (tmp_path / "retrieved.csv").open("w", encoding="utf-8", newline="") as file:
        SYSTEM.outputs["retrieved.csv"](questions, file)
    text = (tmp_path / "retrieved.csv").read_text(encoding="utf-8")
    rows = read_submission(tmp_path / "retrieved.csv").rows
    assert json.loads(rows["q1"].refs_raw) == ["1002", "10,04"]
    assert rows["q2"].ref_ids == ()
    assert [item["answer_value"] for item in csv.DictReader(io.StringIO(text))] == ["4, et 5", ""]
