"""Replies of every kind, read without an exception."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.growth import check_linear
from kit.rows import check_rows

from kohaku_ray.models.parse import Plan, match_refs, parse_answer, parse_plan
from kohaku_ray.records import Prediction, Reply

ANSWER = {
    "explanation": "It says so.",
    "answer": "It is 42 MWh.",
    "answer_value": "42",
    "answer_unit": "MWh",
    "ref_id": ["a"],
    "is_blank": False,
}
READ = Prediction("It is 42 MWh.", "42", "MWh", ("a",), "It says so.", False, 0, 1)
ALLOWED = ["a", "b", "Li2025"]
DEEP = functools.reduce(lambda inner, _: [inner], range(500), "x")


def parse(**changes):
    return parse_answer(json.dumps({**ANSWER, **changes}), ALLOWED, 1)


JSON = json.dumps(ANSWER)


@check_rows(
    "text",
    [
        f" \n{JSON}\n ",
        f"Here it is: {JSON} I hope }}}} this helps }}}}",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}",
        f"<|im_start|>assistant\n{JSON}<|im_end|>",
        json.dumps(ANSWER, indent=8),
        json.dumps(ANSWER | {"confidence": 1, "answer_value_2": "7"}),
        JSON.replace("answer_value", "ANSWER_VALUE"),
        f"<think>{{'x': 1}} maybe {{\"x\": {{}}}} or {{ or }}</think>\n{JSON}",
        f'<think>First {{"answer_value": "7"}}, no.</think>{JSON}',
        f'I think {{so}} and [1] {{"a": 1}} {JSON}',
        f"[{JSON}]",
        f'{{"result": {JSON}}}',
        json.dumps(JSON),
    ],
)
def test_the_answer_is_found_whatever_stands_around_it(text):
    assert parse_answer(text, ALLOWED, 1) == READ


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("", "no JSON object of an answer: the reply is empty"),
        ("I do not know.", "no JSON object of an answer in a reply of 14 characters that begins 'I do not know.'"),
        ('{"x": 1}', "no JSON object of an answer in a reply of 8 characters"),
        ('{"answer_value": "4', "no JSON object"),
    ],
)
def test_what_cannot_be_read_is_blank_with_its_reason(reply, error):
    prediction = parse_answer(reply, ALLOWED, 2, "kW")
    assert prediction.error.startswith(error)
    assert (prediction.is_blank, prediction.answer_value, prediction.ref_ids) == (True, "", ())
    assert (prediction.answer_unit, prediction.attempt) == ("kW", 2)


@check_rows(
    ("value", "text"),
    [
        (" 42 ", "42"),
        (42.0, "42"),
        (0, "0"),
        (True, "1"),
        (False, "0"),
        ([0.02, 0.1], "[0.02,0.1]"),
        (["80", "90"], "[80,90]"),
        ([5], "5"),
        ({"value": 5, "unit": "W"}, "5"),
        ([{"value": 300, "unit": "W"}, {"amount": 1, "units": "kW"}], "[300 W,1 kW]"),
        ({"value": None, "unit": "W"}, ""),
        ("No\ud800ne\u0000such", "Nonesuch"),
        *((blank, "") for blank in (None, "  ", "is_blank", "['is_blank']", "N/A.", "null", "`not\nstated`")),
        *((blank, "") for blank in (float("nan"), float("inf"), [], [None], {}, DEEP)),
    ],
)
def test_values_become_text_or_blank(value, text):
    prediction = parse(answer_value=value)
    assert (prediction.answer_value, prediction.is_blank, prediction.error) == (text, not text, None)
    assert prediction.ref_ids == (("a",) if text else ())
    assert prediction.explanation == "It says so."


@check_rows("flag", [True, "true", "Yes", 1, "1"])
def test_the_flag_is_believed_unless_a_value_and_a_reference_contradict_it(flag):
    kept = parse(is_blank=flag)
    assert kept == replace(READ, flags=("contradictory",))
    for changes, flags in (
        ({"ref_id": []}, ("withheld",)),
        ({"ref_id": ["zz"]}, ("withheld",)),
        ({"answer_value": "is_blank"}, ()),
        ({"answer_value": "is_blank", "ref_id": []}, ()),
    ):
        blank = parse(is_blank=flag, **changes)
        assert (blank.is_blank, blank.answer_value, blank.ref_ids, blank.flags) == (True, "", (), flags)
    sentence = parse_answer(
        json.dumps({**ANSWER, "answer_value": "much", "answer": "?", "is_blank": flag}), ALLOWED, kind="number"
    )
    assert (sentence.is_blank, sentence.flags) == (True, ("withheld",))


@check_rows(
    ("fields", "kind", "value", "flags"),
    [
        ({"answer_value": "Yes"}, "boolean", "1", ()),
        ({"answer_value": False}, "boolean", "0", ()),
        ({"answer_value": "Yes"}, None, "Yes", ()),
        ({"answer_value": "0.2", "answer": "false"}, "boolean", "0", ("mistyped",)),
        ({"answer_value": "is_blank", "answer": "True"}, "boolean", "1", ("contradictory",)),  # Qwen2.5-Coder-1.5B
        ({"answer_value": "is_blank", "answer": "1,300 pounds"}, "number", "", ()),
        ({"answer_value": "1,383.9 MWh"}, "number", "1,383.9 MWh", ()),
        ({"answer_value": "value", "answer": "1383.9 MWh"}, "number", "1383.9 MWh", ("mistyped",)),
        ({"answer_value": [3, 6]}, "range", "[3,6]", ()),
        ({"answer_value": "138,125"}, "number", "138125", ()),
        ({"answer_value": "~138"}, "number", "138", ()),
        ({"answer_value": "less than five"}, "number", "5", ()),
        ({"answer_value": "1.2 × 10⁵"}, "number", "120000", ()),
        ({"answer_value": "about 138 MWh"}, "number", "about 138 MWh", ()),
        ({"answer_value": "~4.3", "answer": "4.3"}, "text", "~4.3", ()),
        ({"answer_value": "138,125"}, "text", "138,125", ()),
        ({"answer_value": "[3.5, 3.5]"}, "number", "3.5", ()),
        ({"answer_value": "3"}, "range", "3", ("mistyped",)),
        ({"answer_value": "w" * 300}, "text", "w" * 300, ("mistyped",)),
        ({"answer_value": "42", "ref_id": []}, "number", "42", ("uncited",)),
    ],
)
def test_a_value_is_read_as_the_kind_that_is_asked_for(fields, kind, value, flags):
    prediction = parse_answer(json.dumps(ANSWER | fields), ALLOWED, unit="MWh", kind=kind)
    assert (prediction.answer_value, prediction.flags, prediction.is_blank) == (value, flags, not value)


WHOLE = '{"explanation": "e", "answer": "a", "answer_value": "80", "answer_unit": "W", "ref_id": ["a", "b"]}'


@check_rows("n_cut", range(1, len(WHOLE)))
def test_of_a_cut_reply_what_is_complete_counts_and_never_half_a_value(n_cut):
    text = WHOLE[:-n_cut]
    prediction = parse_answer(Reply(text, finish_reason="length", completion_tokens=9), ALLOWED)
    if '"80"' not in text:
        assert prediction.error == (
            "no JSON object of an answer: the reply was cut at 9 tokens: raise max_tokens, or serve the model with a "
            "longer window"
        )
    else:
        assert (prediction.answer_value, prediction.error) == ("80", None)
        assert prediction.ref_ids == tuple(ref for ref in ("a", "b") if f'"{ref}"' in text.partition("ref_id")[2])
        assert "cut" in prediction.flags
    half = parse_answer(WHOLE.replace('"80"', "[80, 90]")[: -n_cut - 20], ALLOWED)
    assert half.answer_value in ("", "[80,90]")


@pytest.mark.parametrize(
    "tail",
    [
        "The energy is returned to the facility. " * 30,
        "".join(f"the run took {n}.{n} MWh of energy and " for n in range(40)),
    ],
)
def test_a_loop_is_told_from_a_limit_too_low(tail):
    cut = Reply('{"explanation": "' + tail, finish_reason="length", completion_tokens=400)
    assert parse_answer(cut, ALLOWED).error.endswith("the reply was cut at 400 tokens: it repeats itself")


@check_rows(
    ("reply", "prediction"),
    [
        (json.dumps(dict.fromkeys(ANSWER)), Prediction(is_blank=True)),
        ('{"explanation": "?"}', Prediction(explanation="?", is_blank=True)),
        ('{"answer": "Heron"}', Prediction("Heron", "Heron", is_blank=False, flags=("uncited",))),
        *((json.dumps(ANSWER | {"is_blank": flag}), replace(READ, attempt=0)) for flag in (None, "false", [], "?")),
    ],
)
def test_missing_fields_and_nulls(reply, prediction):
    assert parse_answer(reply, ALLOWED) == prediction


@check_rows(
    ("refs", "matched", "n_foreign"),
    [
        (["a", "b", "a"], ("a", "b"), 0),
        ("a, b", ("a", "b"), 0),
        ("['b', 'a']", ("b", "a"), 0),
        ([{"ref_id": "a"}, {"id": "zz"}], ("a",), 1),
        ("[ref_id=a][ref_id=b]", ("a", "b"), 0),
        (["ref_id: LI2025", "<b>"], ("Li2025", "b"), 0),
        ("['is_blank']", (), 0),
        (["a", "zz", "ZZ", "yy"], ("a",), 2),
        (["N/A", "", None, True], (), 0),
        (7, (), 1),
        (None, (), 0),
        ([[[["zz"]]]], (), 1),
    ],
)
def test_references(refs, matched, n_foreign):
    prediction = parse(ref_id=refs)
    assert (prediction.ref_ids, prediction.n_foreign_refs) == (matched, n_foreign)


def test_ids_match_exactly_first_and_by_any_case_where_one_is_meant():
    assert match_refs(["X1", "x1", "X1 "], ["x1", "X1"]) == (("X1", "x1"), 0)
    assert match_refs(["y2"], ["Y2", "y2 b"]) == (("Y2",), 0)
    assert match_refs(["AB"], ["Ab", "aB"]) == ((), 1)
    assert match_refs(["Smith, J; 2020", 2024], ["Smith, J; 2020", "2024"]) == (("Smith, J; 2020", "2024"), 0)


def test_ids_match_in_any_unicode_form():  # deja-vu#1098
    composed, other = ("Zürnäk", "efficient", "H100's"), ("Zu\u0308rnäk", "eﬃcient", "Ｈ１００’s")
    assert match_refs(list(other), composed) == (composed, 0)
    assert match_refs(list(composed), other) == (other, 0)
    assert match_refs(["ﬁn", "fin"], ["fin", "ﬁn"]) == (("ﬁn", "fin"), 0)


@check_rows(
    ("value", "unit", "read"),
    [
        ({"value": 77, "unit": "MWh"}, "kWh", ("77", "MWh")),
        ({"low": 80, "high": 90, "Unit": "MWh"}, None, ("[80,90]", "MWh")),
        ({"value": 77, "unit": None}, "kWh", ("77", "kWh")),
    ],
)
def test_the_unit_beside_a_value_in_an_object_is_its_own(value, unit, read):
    prediction = parse(answer_value=value, answer_unit=unit)
    assert (prediction.answer_value, prediction.answer_unit, prediction.flags) == (*read, ())


@check_rows(
    "text",
    [
        '{"answerValue": "7", "answerUnit": "kW", "refId": ["a"], "explanation": "e"}',
        '{"Answer Value": "7", "Answer Unit": "kW", "Ref ID": ["a"], "Explanation": "e"}',  # jac#7442
        '{"AnswerValue": "9", "answer_value": "7", "answer-unit": "kW", "REF_ID": ["a"]}',
        '{"answerValue": "7", "answerUnit": "kW", "refId": ["a"], "isBlank": fal',
    ],
)
def test_fields_are_read_in_any_case(text):
    prediction = parse_answer(text, ["a"])
    assert (prediction.answer_value, prediction.answer_unit, prediction.ref_ids) == ("7", "kW", ("a",))


def test_half_a_value_of_a_field_in_another_case_is_none():
    assert parse_answer('{"refId": ["a"], "answerValue": "7', ["a"]).answer_value == ""


DOCUMENTS = ["alpha", "beta", "x-report", "y-report", "Smith 2020", "llama3.1"]
TITLES = {"alpha": "Alpha campus report", "x-report": "Report", "y-report": "Report"}


@check_rows(
    ("cited", "matched"),
    [
        # nexus-rag#880
        *((cited, "alpha") for cited in ("alpha.txt", "docs/alpha.txt", "Alpha Campus Report", "alpha, p. 1")),
        *((cited, "beta") for cited in ("beta (page 1)", "beta.pdf#page=3", "beta:sec0:p1", "C:\\docs\\beta.PDF")),
        ("https://h.org/d/beta.html?x=1", "beta"),
        ("docs/x/report.pdf", "x-report"),
        ("smith_2020.pdf", "Smith 2020"),
        ("llama3.1", "llama3.1"),
        ("smith2020", "Smith 2020"),  # axial#797: a mark left out
        *(
            (cited, "beta") for cited in ("source: beta", "Source: beta.pdf, p. 2", "beta §3.1")
        ),  # azure-search-openai-demo#2305
        ("Smith%202020.pdf", "Smith 2020"),  # azure-search-openai-demo#2577
        *((cited, "beta") for cited in ("beta.pdf:81", "docs/beta.pdf:81-83", "beta:81")),
        *((cited, None) for cited in ("report.pdf:81", "gamma:81")),
        *((cited, None) for cited in ("report.pdf", "Report", "gamma.txt", "llama3", "page 1", "alphabet", ".txt")),
    ],
)
def test_a_citation_is_matched_by_what_made_the_id_where_one_document_fits(cited, matched):
    assert match_refs([cited], DOCUMENTS, TITLES) == (((), 1) if matched is None else ((matched,), 0))
    assert match_refs(cited, DOCUMENTS, TITLES)[0] == (() if matched is None else (matched,))


FINAL = json.dumps(ANSWER | {"answer_value": "1287"})
DRAFT = json.dumps(ANSWER | {"answer_value": "9", "ref_id": ["b"]})
THOUGHT = {
    "gpt-oss (mlx-lm#1867)": f"<|channel|>analysis<|message|>Draft {DRAFT}<|end|><|start|>assistant<|channel|>final"
    f"<|message|>{FINAL}",
    "its marks left out (TensorRT-LLM#9256)": f"analysisDraft {DRAFT}assistantfinal{FINAL}",
    "two final channels": f"<|channel|>final<|message|>{DRAFT}<|end|><|channel|>final<|message|>{FINAL}<|return|>",
    "constrained": f"<|channel|>analysis<|message|>{DRAFT}<|end|><|channel|>final <|constrain|>json<|message|>{FINAL}",
    "Magistral": f"[THINK]{DRAFT}[/THINK]{FINAL}",
    "a template that begins the thinking": f"Perhaps {DRAFT}.</think>{FINAL}",
    "an echoed schema": f'{{"properties": {{"answer_value": {{"type": "string"}}}}}}\n{FINAL}',
    "a mark in a string": FINAL.replace("It says so.", "the <think> tag"),
    "a mark in a fence": f"```json\n{FINAL.replace('It says so.', 'the </think> tag')}\n```",
}


@check_rows("kind", THOUGHT)
def test_what_is_thought_is_not_the_answer(kind):
    prediction = parse_answer(THOUGHT[kind], ALLOWED)
    assert (prediction.answer_value, prediction.ref_ids, prediction.error) == ("1287", ("a",), None)


def answer_object(value="300", refs=("a",), **more):
    return json.dumps({"explanation": "x", "answer_value": value, "ref_id": list(refs), **more})


@check_rows(
    ("text", "value", "flags"),
    [
        # dify#42006: the model goes on to ask and answer another question
        (f"{answer_object()}\n\nQuestion: What is the PUE?\nAnswer: {answer_object('1.1')}", "300", ("several",)),
        (f"{answer_object('is_blank', ())}\nQuestion: …\n{answer_object('1.1')}", "", ("several",)),
        (f"{answer_object()}\n```json\n{answer_object('300.0')}\n```", "300", ()),
        (f"{answer_object('77', answer_unit='MWh')} {answer_object('77000', answer_unit='kWh')}", "77", ()),
        (f"{answer_object('77', answer_unit='MWh')} {answer_object('77', answer_unit='kWh')}", "77", ("several",)),
        (f"Format: {answer_object('...', ['...'])}\n{answer_object()}\n{answer_object('<value>')}", "300", ()),
        (f"{answer_object('7', ['zz'])} or {answer_object()}", "300", ()),
        (f'{{"answer_value": "7"}} so {answer_object()}', "300", ()),
        (f'{{"answer": {answer_object()}}}', "300", ()),  # pflow#598
        (f'{{"json_tool_call": {answer_object()}}}', "300", ()),
        (json.dumps({"name": "answer", "arguments": answer_object()}), "300", ()),  # ollama#12413, smolagents#1003
    ],
)
def test_the_answer_is_the_first_of_the_objects_that_fit_the_schema_best(text, value, flags):
    prediction = parse_answer(text, ALLOWED)
    assert (prediction.answer_value, prediction.flags) == (value, flags)


@check_rows(
    ("value", "read"),
    [
        ("\frac{1}{2}", r"\frac{1}{2}"),
        ("1.3 \times 10^{5}", r"1.3 \times 10^{5}"),
        ("\nu", r"\nu"),
        ("\beta", r"\beta"),
        ("\boldsymbol{\frac{1}{4}}", r"\boldsymbol{\frac{1}{4}}"),  # wrong-notebook#3
        ("one\nline", "one\nline"),
        ("a\tword", "a\tword"),
    ],
)
def test_tex_that_the_escapes_of_json_have_eaten_is_read(value, read):
    """OpenMAIC#658."""
    assert parse(answer_value=value).answer_value == read


@check_rows(
    "text, finish_reason",
    product(
        [
            f"<think>maybe {DRAFT} hmm",  # lm-eval#3382, olmo-eval#389
            f"<|channel|>analysis<|message|>{DRAFT}",
            f"<|channel|>commentary<|message|>{DRAFT}<|end|>",  # TensorRT-LLM#9256
            f"analysisWe need {DRAFT}",
            f"<think>no</think><think>{DRAFT}",
        ],
        ["length", "stop"],
    ),
)
def test_thinking_that_does_not_end_is_no_answer(text, finish_reason):
    reply = Reply(text, finish_reason=finish_reason, completion_tokens=40)
    prediction = parse_answer(reply, ALLOWED)
    assert (prediction.is_blank, prediction.flags) == (True, ())
    assert "the reply was cut while it was thinking at 40 tokens: raise max_tokens" in prediction.error
    assert parse_plan(replace(reply, text="<think>['a draft']"), "q", 4).queries == ("q",)


NEARLY = {
    "a trailing comma (deer-flow#2368)": JSON[:-1] + ",}",
    "single quotes (mem0#4662)": str(ANSWER),
    "a comment (mem0#4662)": JSON.replace(', "answer"', ', // the sentence\n"answer"'),
    "curly quotes (json_repair#10)": re.sub('"([^"]*)"', r"“\1”", JSON),
    "a bare number": JSON.replace('"42"', "1,287"),
    "a quote within (json_repair#10)": JSON.replace("It says so.", 'It says "so" there.'),
    "TeX (paper-qa#870, lean-pool#426)": JSON.replace("It says so.", r"so \(x\) is"),
    "in a fence, behind a sentence": f"Here it is:\n```json\n{JSON[:-1]},}}\n```",
}


@check_rows("kind", NEARLY)
def test_nearly_json_is_repaired_and_flagged(kind):
    prediction = parse_answer(NEARLY[kind], ALLOWED, 1)
    value = "1,287" if "number" in kind else "42"
    assert (prediction.answer_value, prediction.ref_ids, prediction.flags) == (value, ("a",), ("repaired",))
    assert parse_answer(JSON, ALLOWED, 1).flags == ()


def test_a_repair_gives_no_half_value():
    spaced = parse_answer('{"answer_value": 5 000, "ref_id": ["a"]}', ALLOWED, kind="number")  # as French writes it
    assert (spaced.answer_value, spaced.flags) == ("5000", ("repaired",))
    for cut in ("{'answer_value': '42", "{'ref_id': ['a'], 'answer_value': 4", '{"ref_id": ["a"], "answer_value": 4'):
        assert parse_answer(Reply(cut, finish_reason="length"), ALLOWED).answer_value == ""


def test_a_megabyte_of_nearly_json_is_read_in_linear_time_and_named():
    def read(text):
        error = parse_answer(text, ALLOWED).error
        assert f"a reply of {len(text)} characters, more than the 131,072 that are repaired," in error

    check_linear(lambda n: "{'answer_value': '42', " + "'k': [1, 2, 3,], " * n + "}", read, n=15_000)


def test_a_recorded_reply_that_failed_is_no_answer():
    """A ledger of an earlier version may hold it."""
    prediction = parse_answer(Reply(JSON, finish_reason="error", completion_tokens=9), ALLOWED)
    assert "the recorded reply ended with finish_reason 'error': ask it again by --retry errors" in prediction.error
    assert parse_plan(Reply('["chip power"]', finish_reason="abort"), "q", 4).queries == ("q",)
    assert parse_answer(Reply(JSON, finish_reason="eos_token"), ALLOWED).error is None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["is_blank", "[", '["a"']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def check_prediction(prediction):
    assert isinstance(prediction.answer_value, str)
    assert prediction.is_blank == (prediction.answer_value == "")
    assert set(prediction.ref_ids) <= set(ALLOWED)
    assert len(set(prediction.ref_ids)) == len(prediction.ref_ids)
    assert prediction.n_foreign_refs >= 0
    for text in (prediction.answer, prediction.answer_value, prediction.answer_unit, prediction.explanation):
        text.encode()  # what a file can hold: no lone surrogate
        assert "\x00" not in text


@given(st.text() | st.text(alphabet='{}[]":,\\a0 \n'))
def test_any_text_is_read(text):
    check_prediction(parse_answer(text, ALLOWED))


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(ANSWER, json_values)), st.text(max_size=8), st.text(max_size=8))
def test_any_object_is_read(fields, before, after):
    check_prediction(parse_answer(json.dumps(fields), ALLOWED))
    check_prediction(parse_answer(before + json.dumps(fields) + after, ALLOWED))


@pytest.mark.parametrize("unit", ["[", "{", '{"a":', '{"a":[', "[{},", '{"answer":[', "1"])
def test_time_grows_with_depth_and_length(unit):
    def read(reply: str) -> None:
        check_prediction(parse_answer(reply, ALLOWED))
        assert parse_plan(reply, "q", 4)[0] == ("q",)

    check_linear(lambda n: unit * n, read, n=10_000)


ASKED = "How much power do chips draw?"


@check_rows(
    ("reply", "queries", "dropped"),
    [
        ('["chip power", "power draw"]', ("chip power", "power draw"), 0),
        ('{"queries": ["chip power"]}', ("chip power",), 0),
        ('Sure [1]:\n```json\n["chip power"]\n``` ]', ("chip power",), 0),
        ('<think>["draft"] {</think>["chip power"]', ("chip power",), 0),
        ('[" chip  power ", "CHIP power", "How much power do chips draw?", "", 3, null, ["n"]]', ("chip power",), 0),
        (json.dumps([ASKED.upper() + " "]), (), 0),
        ('{"plan": {"queries": ["chip power"]}}', ("chip power",), 0),
        (
            '["chip power", "TDP of accelerators in watts", "5.9KM", ",", "True"]',
            ("chip power", "TDP of accelerators in watts"),
            3,
        ),
        (json.dumps(["chip power", "power " * 200]), ("chip power",), 1),
        ('{"queries": ["chip power", "power draw", "acc', ("chip power", "power draw"), 0),
        ('```json\n["chip power", "power draw",', ("chip power", "power draw"), 0),
    ],
)
def test_plans(reply, queries, dropped):
    for given_reply in (reply, Reply(reply, finish_reason="length")):
        plan = parse_plan(given_reply, ASKED, 4)
        assert (plan.queries, len(plan.dropped), plan.error) == ((ASKED, *queries), dropped, None)
        assert parse_plan(given_reply, ASKED, 1) == Plan((ASKED,))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("...", "it has no words"),
        ("5.9KM", "it shares no word with the question"),
        ("w " * 200, "it has 399 characters"),
    ],
)
def test_a_query_that_is_not_searched_is_kept_with_its_reason(query, reason):
    plan = parse_plan(json.dumps({"queries": [query]}), ASKED, 4)
    assert plan == Plan((ASKED,), ((query.strip()[:200], reason),), "none of the 1 queries can be searched")


@check_rows("reply", ["", "x, y", "[]", "[1, 2]", '{"queries": "x"}', '{"queries": []}'])
def test_a_plan_that_cannot_be_read_is_the_question_alone(reply):
    plan = parse_plan(reply, "q", 4)
    assert (plan.queries, plan.dropped) == (("q",), ())
    assert plan.error.startswith("no JSON object with queries")


@given(st.text() | json_values.map(json.dumps), st.text(min_size=1, max_size=5), st.integers(1, 6))
def test_any_plan_is_read(reply, question, n):
    queries, dropped, error = parse_plan(reply, question, n)
    assert queries[0] == question
    assert 1 <= len(queries) <= n
    assert len({" ".join(query.split()).casefold() for query in queries}) == len(queries)
    assert error is None or queries == (question,)
    for query in (*queries[1:], *(query for query, _ in dropped)):
        query.encode()


SHOWN = [
    "Salt holds Na, sodium. Option None has no pump.",
    "The Jevons paradox: the growth outran it. Unknown Pleasures.",
    "Contents of the report: 3.2 Parental leave policy at Northwind. 3.3 Elternzeit-Richtlinie. Source material.",
]
SAID = (  # pinchy#1163, James-RAG-Evol#619: abstentions that cite why, in words of the passage too
    "the detailed policy text itself isn't included in the indexed materials",
    "Ich konnte in den indizierten Dokumenten leider keine eigentliche Richtlinie zur Elternzeit finden",
    "The source material does not contain the articles",
    "cannot be determined because the necessary source material is missing",
)


@check_rows(
    ("value", "refs", "more", "is_blank"),
    [
        # VLMEvalKit#1559: an answer that looks like none
        *((value, ["a"], {}, False) for value in ("None", "Na", "Unknown", "unknown Pleasures")),
        *((value, [], {}, True) for value in ("None", "Na", "Unknown")),
        *((value, ["a"], {"is_blank": True}, True) for value in ("None", "Unknown", "not mentioned")),
        # pinchy#1163: an abstention that cites its evidence
        *((value, ["a"], {}, True) for value in ("not mentioned", "No information available", "I don't know", "na")),
        *((value, ["a"], {}, True) for value in ("is_blank", "", "n/a", "not stated")),
        *((text, ["a"], more, True) for text in SAID for more in ({}, {"is_blank": True})),
        ("I couldn't find the actual text of Northwind's parental leave policy", ["a"], {"is_blank": True}, True),
        ("Jevons' Paradox", ["a"], {}, False),
        ("the paradox of Jevons", ["a"], {}, False),
        ("Jevons paradox", [], {}, False),
        ("rebound", [], {}, True),
        ("42", ["a"], {}, False),
        ("42", [], {}, False),
        ("about 42 kWh of heat", ["a"], {}, False),
        ("True", ["a"], {}, False),
        ("42", ["a"], {"is_blank": True}, False),
        ("Jevons paradox", ["a"], {"is_blank": True}, False),
    ],
)
def test_evidence_decides_who_abstains(value, refs, more, is_blank):
    fields = {"answer_value": value, "answer_unit": "", "ref_id": refs, "is_blank": False, **more}
    prediction = parse_answer(json.dumps(ANSWER | fields), ALLOWED, shown=SHOWN)
    assert (prediction.is_blank, prediction.answer_value) == (is_blank, "" if is_blank else value)


def test_without_the_shown_texts_what_may_mean_no_answer_does():
    assert parse(answer_value="None").is_blank
    assert not parse(answer_value="not mentioned").is_blank
