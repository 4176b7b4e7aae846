import asyncio
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from systems.inprocess import InProcessTools, library, words

from kohaku_ray.errors import ContextOverflowError, ModelError, TransientModelError
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import Question, Reply, TraceRow
from kohaku_ray.retrieval.context import Context
from kohaku_ray.retrieval.evidence import rank
from kohaku_ray.systems.base import Depth
from kohaku_ray.systems.kohaku import SYSTEM, answer, prepare
from kohaku_ray.systems.kohaku.prepare import answer_prompt
from kohaku_ray.systems.kohaku.settings import KohakuSettings

QUESTION = Question("q1", "How much power does training draw?", answer_unit="MW", answer_type="number")
QUERIES = ["training power draw in megawatts", "electric load of model training"]
PLAN = json.dumps({"queries": QUERIES})
INDEX = library(
    energy=[
        ("Page 1", ["Training draws 12 MW of power. Cooling draws more.", "Chips draw power. Training is long."]),
        ("Page 2", ["Power is measured in MW. The grid is old."]),
    ],
    water=[
        ("Intake", ["Water cools the racks. Training needs water. Power does not."]),
        ("End", ["Rain fills lakes."]),
    ],
    birds=[("Owls", ["Owls sleep by day. They hunt."]), ("Crows", ["Crows draw figures. They count."])],
)


def settings(retrieval=None, **generation):
    small = {"queries": 1, "top_k": 3, "top_k_final": None, "bm25_top_k": 0, "section_tokens": 0}
    return KohakuSettings(**small | (retrieval or {}) | generation)


def reply(value="12", refs=("energy",), **fields):
    body = {"explanation": "It says so.", "answer": f"It is {value}.", "answer_value": value, "answer_unit": "MW"}
    return json.dumps(body | {"ref_id": list(refs)} | fields)


BLANK = reply("is_blank", ())
UNREADABLE = "no idea"
LOOP = Reply('{"explanation": "' + "It draws power. " * 60, finish_reason="length", completion_tokens=1024)


def scripted(answers, plan=PLAN):
    """A script that gives the plan to the planner and these replies, in order, to everything else."""
    left = iter(answers)
    return lambda call: plan if call.role == "plan" else next(left)


def tools_for(*answers, plan=PLAN, **fields):
    return InProcessTools(INDEX, scripted(answers, plan), SYSTEM, **fields)


def prepared(tools, config, question=QUESTION):
    return asyncio.run(prepare(question, tools, config))


def answered(tools, config, question=QUESTION):
    async def run():
        return await answer(await prepare(question, tools, config), tools, config)

    return asyncio.run(run())


def each_attempt(config, n, tools=tools_for):
    """What the answer is when attempt 0, 1, … n - 1 is the first that is not blank."""
    return [answered(tools(*[BLANK] * at, reply()), config) for at in range(n)]


def rows_of(found, step):
    return [row for row in found.trace if row.step == step]


def matches(found):
    return [row.node_id for row in rows_of(found, "evidence")]


def snippets(call):
    return call.prompt.variables["snippets"]


def answer_calls(tools):
    return [call for call in tools.calls if call.role == "answer"]


# ---- prepare


def test_one_query_asks_no_planner():
    tools = tools_for()
    evidence = prepared(tools, settings())
    assert evidence.queries == (QUESTION.text,)
    assert evidence.trace == (TraceRow("plan", 0, QUESTION.text),)
    assert tools.calls == []


def test_the_plan_adds_queries_to_the_question():
    tools = tools_for()
    evidence = prepared(tools, settings({"queries": 3}))
    assert evidence.queries == (QUESTION.text, *QUERIES)
    assert evidence.trace == tuple(TraceRow("plan", at, query) for at, query in enumerate(evidence.queries))
    (call,) = tools.calls
    assert (call.role, call.attempt, call.schema["properties"]["queries"]["maxItems"]) == ("plan", 0, 3)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("I cannot plan.", "JSON object with queries"),
        ("", "empty"),
        ('{"queries": "power"}', "JSON object with queries"),
        (ModelError("the server said 400"), "ModelError: the server said 400"),
        (TransientModelError("6 tries timed out"), "TransientModelError: 6 tries timed out"),
        (ContextOverflowError("32,000 tokens but the window is 8,192"), "ContextOverflowError: 32,000 tokens"),
    ],
)
def test_a_failed_plan_falls_back_to_the_question(plan, message):
    tools = tools_for(reply(), plan=plan)
    config = settings({"queries": 3})
    evidence = prepared(tools, config)
    assert evidence.queries == (QUESTION.text,)
    (row,) = evidence.trace
    assert (row.step, row.rank, row.text) == ("plan", 0, QUESTION.text)
    assert message in row.error
    found = asyncio.run(answer(evidence, tools, config))
    assert not found.prediction.is_blank
    assert rows_of(found, "plan") == [], "the engine writes prepare's rows once, for all members"


def test_everything_is_searched_once_at_the_deepest():
    tools = tools_for(BLANK, BLANK, reply())
    answered(tools, settings({"queries": 3, "bm25_top_k": 2}, max_retries=2))
    assert [call for call in tools.asked if call[0] in ("embed", "search")] == [
        ("embed", (QUESTION.text, *QUERIES)),
        ("search", "nodes", 3, 9),
    ]
    lexical = ("lexical", "paragraphs", (QUESTION.text, *QUERIES), 2)
    assert [call for call in tools.asked if call[0] == "lexical"] == [lexical]
    assert [call[0] for call in tools.asked].count("nodes") == 1
    assert len(answer_calls(tools)) == 3


def test_every_hit_of_the_search_is_used():
    """The published code filtered by node kind after top-k: most queries came back with fewer than k."""
    evidence = prepared(tools_for(), settings({"top_k": 4}, max_retries=0))
    assert [len(hits) for hits in evidence.dense] == [4]
    assert len(rank(evidence, **RANK | {"dedup": "node"})) == 4


RANK = {
    "top_k": 4,
    "top_k_final": None,
    "strategy": "combined",
    "normalise": "max",
    "alpha": 0.4,
    "dedup": "tree",
    "bm25_top_k": 0,
}


def test_the_threshold_holds_for_every_list():
    loose = prepared(tools_for(), settings({"queries": 3, "top_k": 9}))
    strict = prepared(tools_for(), settings({"queries": 3, "top_k": 9, "retrieval_threshold": 0.3}))
    for before, after in zip(loose.dense, strict.dense, strict=True):
        strong = before.scores >= 0.3
        assert 0 < strong.sum() < len(before)
        assert np.array_equal(after.scores, before.scores[strong])
        ids = [loose.nodes.node_id(row) for row in before.rows[strong]]
        assert [strict.nodes.node_id(row) for row in after.rows] == ids


# ---- answer


def test_a_good_reply_is_the_prediction():
    tools = tools_for(reply("12", ("energy", "mars")))
    found = answered(tools, settings())
    prediction = found.prediction
    assert (prediction.answer_value, prediction.ref_ids, prediction.n_foreign_refs) == ("12", ("energy",), 1)
    assert (prediction.is_blank, prediction.attempt, prediction.error) == (False, 0, None)
    (call,) = answer_calls(tools)
    assert found.reply == reply("12", ("energy", "mars"))
    evidence = rows_of(found, "evidence")
    assert found.measures == {
        "matches": len(evidence),
        "snippets": len(snippets(call)),
        "characters": sum(len(text) for _, text in snippets(call)),
        "context_tokens": sum(row.scores["n_tokens"] for row in evidence),
        "cut": 0,
        "overflowed": 0,
    }
    assert min(found.measures[name] for name in ("matches", "snippets", "characters", "context_tokens")) > 0
    assert (evidence[0].rank, evidence[0].doc_id, evidence[0].note) == (0, "energy", "dense")


def test_the_trace_says_what_was_matched_and_what_was_shown():
    tools = tools_for(BLANK, reply(), plan=json.dumps([QUESTION.text.lower() + " now"]))
    found = answered(tools, settings({"queries": 2, "top_k": 2, "bm25_top_k": 3}, max_retries=1))
    evidence, context = rows_of(found, "evidence"), rows_of(found, "context")
    assert len(evidence) + len(context) == len(found.trace)
    assert [row.rank for row in evidence] == list(range(len(evidence)))
    assert {row.attempt for row in found.trace} == {1}, "the attempt that the answer is from"
    for row in evidence:
        at = INDEX.row_of(row.node_id)
        assert (row.text, row.doc_id, row.error) == (INDEX.text_of(at), INDEX.doc_id(at), None)
        assert row.kind == ("sentence" if ":s" in row.node_id.split(":p")[1] else "paragraph")
    dense = [row for row in evidence if row.note == "dense"]
    assert {row.note for row in evidence[len(dense) :]} == {"lexical"}
    assert [set(row.scores) for row in dense] == [
        {"score", "n_tokens", "frequency", "similarity", "max_similarity"}
    ] * len(dense)
    assert {row.scores["frequency"] for row in dense} == {2}
    assert all(set(row.scores) == {"score", "n_tokens"} for row in evidence[len(dense) :])
    shown = [(row.doc_id, row.text) for row in context]
    assert shown == [tuple(part) for part in snippets(answer_calls(tools)[1])]
    assert [row.rank for row in context] == list(range(len(context)))
    kinds = {row.node_id: row.kind for row in evidence}
    assert [row.kind for row in context] == [kinds[row.node_id] for row in context]


def test_question_unit_type_and_order_reach_the_prompt():
    tools = tools_for(reply())
    answered(tools, settings(prompt_order="question_first"))
    text = answer_calls(tools)[0].prompt.user
    assert "MW" in text
    assert text.index(QUESTION.text) < text.index("[ref_id=energy]")


def test_the_questions_unit_stands_in_where_the_model_names_none():
    assert answered(tools_for(reply(answer_unit="")), settings()).prediction.answer_unit == "MW"
    assert answered(tools_for(reply(answer_unit="kW")), settings()).prediction.answer_unit == "kW"


@pytest.mark.parametrize("constrain", [True, False])
def test_the_schema_lists_the_documents_of_the_context(constrain):
    tools = tools_for(reply())
    answered(tools, settings(constrain_refs=constrain))
    (call,) = answer_calls(tools)
    shown = list(dict.fromkeys(ref_id for ref_id, _ in snippets(call)))
    assert call.schema["properties"]["ref_id"]["items"].get("enum") == (shown if constrain else None)


def test_a_blank_is_asked_again_with_deeper_evidence_reranked_at_each_depth():
    tools = tools_for(BLANK, BLANK, reply())
    config = settings({"top_k": 1, "top_k_final": 1, "dedup": "node"}, max_retries=3)
    found = answered(tools, config)
    assert found.prediction.attempt == 2
    assert [call.attempt for call in answer_calls(tools)] == [0, 1, 2]
    attempts = each_attempt(config, 3)
    assert [attempt.measures["matches"] for attempt in attempts] == [1, 2, 3]
    evidence = prepared(tools_for(), config)
    expected = [rank(evidence, **RANK | {"top_k": k, "top_k_final": k, "dedup": "node"}) for k in (1, 2, 3)]
    ids = [[evidence.nodes.node_id(row) for row in ranked.rows] for ranked in expected]
    assert [matches(attempt) for attempt in attempts] == ids
    assert found == attempts[2]


def test_frequency_changes_the_order_as_the_lists_grow():
    """Rank 2 of both queries beats either's rank 1 once depth 2 is looked at."""
    rows = {name: INDEX.row_of(name) for name in ("energy:sec1:p0", "water:sec1:p0", "birds:sec0:p0")}
    first, second, both = rows["energy:sec1:p0"], rows["water:sec1:p0"], rows["birds:sec0:p0"]

    class Fixed(InProcessTools):
        async def search(self, view, vectors, top_k, within=None):
            return [
                Hits(np.array([first, both]), np.array([0.9, 0.8])),
                Hits(np.array([second, both]), np.array([0.7, 0.6])),
            ]

    tools = Fixed(INDEX, scripted([BLANK, reply()], json.dumps(["other"])), SYSTEM)
    config = settings({"queries": 2, "top_k": 1, "rerank": "frequency"}, max_retries=1)
    answered(tools, config)
    assert [ref_id for ref_id, _ in snippets(answer_calls(tools)[0])] == ["energy", "water"]
    assert [ref_id for ref_id, _ in snippets(answer_calls(tools)[1])] == ["birds", "energy", "water"]


def test_retries_run_out_on_a_blank():
    tools = tools_for(BLANK, BLANK, BLANK)
    prediction = answered(tools, settings(max_retries=2)).prediction
    assert (prediction.is_blank, prediction.attempt, prediction.error) == (True, 2, None)
    assert len(tools.calls) == 3


def test_the_budget_grows_with_the_attempt():
    attempts = each_attempt(settings({"top_k": 9, "max_context_tokens": 8}, max_retries=2), 3)
    spent = [attempt.measures["context_tokens"] for attempt in attempts]
    assert [8 * (at + 1) >= n > 8 * at for at, n in enumerate(spent)] == [True] * 3
    assert [attempt.measures["cut"] for attempt in attempts] == [1] * 3
    unbounded = answered(tools_for(reply()), settings({"top_k": 9, "max_context_tokens": None}))
    assert unbounded.measures["context_tokens"] > 24
    assert not unbounded.measures["cut"]


def test_the_window_bounds_every_attempt():
    """The documents, the rest of the prompt and the longest reply together fit the model."""
    full = answered(tools_for(reply()), settings({"top_k": 20, "max_context_tokens": None}))
    everything = int(full.measures["context_tokens"])
    prompt = answer_prompt(tools_for().prompts, QUESTION, Context((), (), (), (), 0, False), "context_first")
    bare = len("".join(text for _, text in prompt.messages)) / 3
    config = settings({"top_k": 20, "max_context_tokens": None}, max_retries=1)

    def narrow(*answers):
        return tools_for(*answers, window_tokens=int(bare) + 50 + everything, max_tokens=50)

    attempts = each_attempt(config, 2, narrow)
    assert [attempt.prediction.attempt for attempt in attempts] == [0, 1]
    assert all(0 < a.measures["context_tokens"] < everything and a.measures["cut"] for a in attempts)


def test_a_window_too_small_for_any_evidence_says_so():
    tools = tools_for(window_tokens=300)
    prediction = answered(tools, settings(max_retries=0)).prediction
    assert prediction.is_blank
    assert "not one sentence of the evidence fits" in prediction.error
    assert tools.calls == []


def test_no_evidence_is_an_abstention_without_a_call():
    tools = tools_for()
    found = answered(tools, settings({"retrieval_threshold": 1.0}, max_retries=1))
    assert (found.prediction.is_blank, found.prediction.error, found.trace) == (True, None, ())
    assert found.prediction.explanation == "No evidence was found."
    assert (found.reply, found.prediction.attempt) == (None, 1)
    assert tools.calls == []


def test_bm25_paragraphs_come_behind_and_are_marked():
    tools = tools_for(reply())
    question = Question("q2", "Rain lakes racks?")
    found = answered(tools, settings({"top_k": 1, "bm25_top_k": 3}), question)
    evidence = rows_of(found, "evidence")
    assert [row.note for row in evidence] == ["dense", "lexical", "lexical"]
    assert "water:sec0:p0" in matches(found)[1:]
    assert [row.scores.get("frequency") for row in evidence] == [1, None, None]


def test_dedup_none_repeats_texts():
    plans = json.dumps([QUESTION.text.lower() + " now"])
    shown = {}
    for dedup in ("none", "node", "tree"):
        tools = tools_for(reply(), plan=plans)
        answered(tools, settings({"queries": 2, "dedup": dedup, "rerank": "none"}, max_retries=0))
        shown[dedup] = [text for _, text in snippets(answer_calls(tools)[0])]
    assert len(shown["none"]) == 6
    assert len(set(shown["none"])) < 6
    assert len(set(shown["tree"])) == len(shown["tree"])
    assert len(set(shown["node"])) == len(shown["node"])


# ---- bad replies


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "no idea",
        "{",
        '{"answer_value": "12',
        "[]",
        "null",
        "12",
        '{"foo": 1}',
        "\x00\ud800",
        "{" * 5000,
    ],
)
def test_an_unreadable_reply_is_asked_again_and_then_blank_with_the_reason(bad):
    tools = tools_for(bad, bad)
    found = answered(tools, settings(max_retries=1))
    assert found.prediction.is_blank
    assert found.prediction.error.startswith("no JSON object")
    assert (found.prediction.attempt, found.reply) == (1, bad)
    assert len(tools.calls) == 2
    mended = answered(tools_for(bad, reply()), settings(max_retries=1)).prediction
    assert (mended.answer_value, mended.error, mended.attempt) == ("12", None, 1)


CUT = Reply('{"explanation": "the dr', finish_reason="length", prompt_tokens=100, completion_tokens=1024)


def test_a_reply_cut_off_is_asked_once_more_with_more_room_and_then_an_error():
    tools = tools_for(CUT, reply())
    found = answered(tools, settings(max_retries=1))
    assert (found.prediction.answer_value, found.reply) == ("12", reply())
    assert [(row.text, row.attempt) for row in found.other_replies] == [(CUT.text, 0)]
    assert [(call.attempt, call.max_tokens) for call in tools.calls] == [(0, None), (0, 2048)]

    tools = tools_for(CUT, CUT)
    found = answered(tools, settings(max_retries=1))
    assert found.prediction.is_blank
    assert "cut at 1024 tokens: raise max_tokens" in found.prediction.error
    assert (found.prediction.ref_ids, found.reply, len(tools.calls)) == ((), CUT.text, 2)


def test_a_reply_cut_off_by_the_window_itself_is_not_asked_again():
    tools = tools_for(replace(CUT, prompt_tokens=3000))
    tools.window_tokens = 4000
    assert "was cut" in answered(tools, settings(max_retries=1)).prediction.error
    assert len(tools.calls) == 1


def test_a_loop_is_asked_again_deeper_and_never_longer():
    tools = tools_for(LOOP, reply())
    assert answered(tools, settings(max_retries=1)).prediction.answer_value == "12"
    assert [(call.attempt, call.max_tokens) for call in tools.calls] == [(0, None), (1, None)]
    assert answered(tools_for(LOOP, LOOP), settings(max_retries=1)).prediction.error.endswith("it repeats itself")


@pytest.mark.parametrize(
    ("replies", "value", "error", "n_other"),
    [
        ([BLANK, UNREADABLE], "", None, 1),
        ([BLANK, LOOP], "", None, 1),
        ([UNREADABLE, BLANK], "", None, 1),
        ([UNREADABLE, LOOP], "", "it repeats itself", 1),
        ([BLANK, CUT, CUT], "", None, 2),
        ([replace(CUT, text=reply()[:-2]), UNREADABLE], "12", None, 1),
        ([replace(CUT, text=reply()[:-2]), CUT], "12", None, 1),
        ([replace(CUT, text=reply()[:-2]), ModelError("HTTP 500")], "12", None, 1),
        ([BLANK, ModelError("HTTP 500")], "", "HTTP 500", 1),
        ([reply(refs=()), BLANK], "", None, 1),
    ],
)
def test_the_best_try_counts_and_every_other_is_kept(replies, value, error, n_other):
    found = answered(tools_for(*replies), settings(max_retries=1))
    assert (found.prediction.answer_value, found.prediction.is_blank) == (value, not value)
    assert found.prediction.error is None if error is None else error in found.prediction.error
    assert len(found.other_replies) == n_other
    said = [found.reply, *(row.text for row in found.other_replies)]
    texts = [one if isinstance(one, str) else getattr(one, "text", "") for one in replies]
    assert sorted(text or "" for text in said) == sorted(texts)


def test_an_answer_that_cites_nothing_is_blank_where_references_are_required():
    found = answered(tools_for(reply(refs=()), reply(refs=("mars",))), settings(max_retries=1))
    assert (found.prediction.is_blank, found.prediction.answer_value) == (True, "")
    assert found.prediction.flags == ("uncited",)
    assert [row.note for row in found.other_replies] == ["uncited, blank"]
    free = answered(tools_for(reply(refs=())), settings(max_retries=1, require_refs=False)).prediction
    assert (free.answer_value, free.is_blank, free.flags) == ("12", False, ("uncited",))


def test_a_contradictory_reply_keeps_its_value():
    found = answered(tools_for(reply(is_blank=True)), settings(max_retries=2))
    assert (found.prediction.answer_value, found.prediction.ref_ids) == ("12", ("energy",))
    assert found.prediction.flags == ("contradictory",)


def test_the_schema_types_the_value_and_bounds_every_string():
    tools = tools_for(reply(), max_tokens=300)
    answered(tools, settings())
    (call,) = answer_calls(tools)
    fields = call.schema["properties"]
    assert "pattern" in fields["answer_value"]
    assert fields["explanation"] == fields["answer"] == {"type": "string", "maxLength": 300}
    assert "is_blank" not in fields


def test_what_a_plan_drops_stands_in_the_trace():
    plan = json.dumps({"queries": ["training power", "5.9KM"]})
    evidence = prepared(tools_for(plan=plan), settings({"queries": 3}))
    assert evidence.queries == (QUESTION.text, "training power")
    rows = [(row.rank, row.text, row.note) for row in evidence.trace]
    assert rows[2:] == [(2, "5.9KM", "not searched: it shares no word with the question")]


@pytest.mark.parametrize("refs", [[], None, "energy", [None, 3], {"x": 1}, ["is_blank"]])
def test_odd_references_are_no_error(refs):
    config = settings(require_refs=False)
    prediction = answered(tools_for(json.dumps(json.loads(reply()) | {"ref_id": refs})), config).prediction
    assert prediction.answer_value == "12"
    assert set(prediction.ref_ids) <= {"energy"}


@pytest.mark.parametrize("error", [ModelError("HTTP 400"), TransientModelError("timed out six times")])
def test_a_model_that_fails_is_a_blank_row_with_the_error(error):
    tools = tools_for(BLANK, error, reply())
    found = answered(tools, settings(max_retries=2))
    assert found.prediction.is_blank
    assert found.prediction.error == f"{type(error).__name__}: {error}"
    assert found.prediction.attempt == 1
    assert found.reply is None
    assert [call.attempt for call in tools.calls] == [0, 1]


# ---- overflow


def test_an_overflow_is_asked_once_more_with_fewer_matches():
    tools = tools_for(ContextOverflowError("too long"), reply())
    config = settings({"top_k": 5, "top_k_final": 5, "dedup": "node"})
    found = answered(tools, config)
    assert found.measures["overflowed"] == 1
    assert (found.prediction.is_blank, found.prediction.attempt) == (False, 0)
    long, short = answer_calls(tools)
    assert (long.attempt, short.attempt) == (0, 0)
    assert len("".join(text for _, text in snippets(short))) < len("".join(text for _, text in snippets(long)))
    evidence = prepared(tools_for(), config)
    fewer = rank(evidence, **RANK | {"top_k": 3, "top_k_final": 3, "dedup": "node"})
    allowed = [evidence.nodes.node_id(row) for row in fewer.rows]
    assert 0 < len(matches(found)) <= len(allowed)
    assert matches(found) == allowed[: len(matches(found))]


def test_windows_are_another_context_of_the_same_evidence_and_budget():
    shown = []
    for context in ("groups", "windows"):
        tools = tools_for(reply())
        found = answered(tools, settings({"top_k": 8, "max_context_tokens": 14, "context": context}))
        shown.append(snippets(answer_calls(tools)[0]))
        assert 0 < found.measures["context_tokens"] <= 14
        assert found.prediction.answer_value == "12"
    assert shown[0] != shown[1]
    assert len({tuple(one) for one in shown[1]}) == len(shown[1]) > 0


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_an_overflow_shortens_a_context_that_the_budget_had_cut(top_k):
    tools = tools_for(ContextOverflowError("too long"), reply())
    answered(tools, settings({"top_k": top_k, "max_context_tokens": 14, "section_tokens": 50}))
    long, short = ("".join(text for _, text in snippets(call)) for call in answer_calls(tools))
    assert 0 < len(short) < len(long)


def test_an_overflow_takes_two_from_what_is_kept_over_all_queries_too():
    tools = tools_for(ContextOverflowError("too long"), reply())
    found = answered(tools, settings({"top_k": 8, "top_k_final": 3, "paragraph_tokens": 1, "siblings": 0}))
    assert [len(snippets(call)) for call in answer_calls(tools)] == [3, 1]
    assert len(matches(found)) == 1


def test_a_second_overflow_is_a_blank_row_with_the_error():
    tools = tools_for(ContextOverflowError("too long"), ContextOverflowError("still too long"), reply())
    found = answered(tools, settings({"top_k": 5}, max_retries=2))
    assert found.prediction.is_blank
    assert found.prediction.error == "ContextOverflowError: still too long"
    assert len(tools.calls) == 2
    assert (found.prediction.attempt, found.measures["overflowed"]) == (0, 1)


def test_an_overflow_that_leaves_nothing_to_show_ends_the_attempts():
    tools = tools_for(ContextOverflowError("too long"), reply())
    found = answered(tools, settings({"top_k": 1, "max_context_tokens": 6}, max_retries=2))
    assert found.prediction.error == "ContextOverflowError: too long"
    assert (len(tools.calls), found.prediction.attempt, found.measures["overflowed"]) == (1, 0, 1)


def test_after_an_overflow_the_next_attempt_is_deep_again():
    tools = tools_for(ContextOverflowError("too long"), BLANK, reply())
    found = answered(tools, settings({"top_k": 4, "dedup": "node"}, max_retries=1))
    assert [call.attempt for call in tools.calls] == [0, 0, 1]
    assert (found.prediction.attempt, found.measures["overflowed"], found.measures["matches"]) == (1, 0, 8)
    first = answered(tools_for(ContextOverflowError("too long"), reply()), settings({"top_k": 4, "dedup": "node"}))
    assert first.measures["overflowed"] == 1


# ---- concurrency


def test_questions_and_members_at_once_do_not_touch_each_other():
    """The published code changed shared settings while other questions were under way."""
    config = settings({"queries": 2, "top_k": 1, "top_k_final": 1, "dedup": "node"}, max_retries=3, require_refs=False)
    questions = [
        Question(f"q{n}", text) for n, text in enumerate(["power draw", "water cools", "owls hunt", "old grid"])
    ]
    frozen = config.model_dump_json()

    def script_for(n_blanks, overflows):
        def script(call):
            if call.role == "plan":
                return json.dumps(["long training runs now"])
            if overflows and call.attempt == 1:
                return overflows.pop()
            return BLANK if call.attempt < n_blanks else reply(str(n_blanks), ())

        return script

    async def one(question, n_blanks, together):
        tools = InProcessTools(INDEX, script_for(n_blanks, [ContextOverflowError("too long")]), SYSTEM)
        evidence = await prepare(question, tools, config)
        if together:
            await asyncio.sleep(0)
        return await answer(evidence, tools, config), [call.attempt for call in answer_calls(tools)]

    async def all_at_once():
        return await asyncio.gather(*(one(question, n, True) for n, question in enumerate(questions)))

    together = asyncio.run(all_at_once())
    alone = [asyncio.run(one(question, n, False)) for n, question in enumerate(questions)]
    assert together == alone
    assert [found.prediction.attempt for found, _ in together] == [0, 1, 2, 3]
    assert [attempts for _, attempts in together] == [[0], [0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2, 3]]
    assert config.model_dump_json() == frozen


def test_members_share_evidence_without_changing_it():
    tools = tools_for(*[BLANK, reply()] * 4)
    config = settings({"queries": 2}, max_retries=1)
    evidence = prepared(tools, config)
    before = pickle.dumps((evidence.dense, evidence.lexical, evidence.queries))

    async def run():
        return await asyncio.gather(*(answer(evidence, tools, config) for _ in range(4)))

    answers = asyncio.run(run())
    assert pickle.dumps((evidence.dense, evidence.lexical, evidence.queries)) == before
    assert len(answers) == 4


# ---- cross-encoder


def overlap(query, text):
    return float(len(words(query) & words(text)))


def reordered(score, retrieval=None, *answers, **generation):
    tools = tools_for(*(answers or [reply()]), pair_score=score)
    given = {"top_k": 4, "dedup": "node", "cross_encoder": "pairs"} | (retrieval or {})
    return answered(tools, settings(given, **generation)), tools


def test_the_cross_encoder_orders_all_that_was_ranked_before_it_is_cut():
    plain = answered(tools_for(reply()), settings({"top_k": 4, "dedup": "node"}))
    found, tools = reordered(lambda query, text: -len(text), {"top_k_final": 2})
    (ranked,) = [call[1] for call in tools.asked if call[0] == "rank_pairs"]
    texts = [row.text for row in rows_of(plain, "evidence")]
    assert ranked == tuple((QUESTION.text, text) for text in texts)
    assert len(texts) == 4
    best = sorted(texts, key=len)[:2]
    assert best != texts[:2]
    evidence = rows_of(found, "evidence")
    assert [row.text for row in evidence] == best
    assert [row.scores["score"] for row in evidence] == [-len(text) for text in best]
    assert [row.note for row in evidence] == ["dense"] * 2
    similarity = {row.node_id: row.scores["similarity"] for row in rows_of(plain, "evidence")}
    assert [row.scores["similarity"] for row in evidence] == [similarity[name] for name in matches(found)]


def test_pairs_that_tie_keep_the_order_of_the_queries():
    plain = answered(tools_for(reply()), settings({"top_k": 4, "dedup": "node"}))
    assert matches(reordered(lambda *_: 0.5)[0]) == matches(plain)


def test_bm25_comes_behind_what_the_cross_encoder_keeps_and_is_not_scored_by_it():
    found, tools = reordered(overlap, {"top_k_final": 1, "bm25_top_k": 3})
    (ranked,) = [call[1] for call in tools.asked if call[0] == "rank_pairs"]
    evidence = rows_of(found, "evidence")
    assert [row.note for row in evidence] == ["dense", *["lexical"] * (len(evidence) - 1)]
    assert len(evidence) > 1
    assert len(ranked) == 4
    assert evidence[0].scores["score"] == max(overlap(*pair) for pair in ranked)


def test_each_depth_is_ranked_as_deep_as_it_is_searched():
    found, tools = reordered(overlap, {"top_k": 2, "top_k_final": 1}, BLANK, reply(), max_retries=1)
    ranked = [call[1] for call in tools.asked if call[0] == "rank_pairs"]
    assert [len(pairs) for pairs in ranked] == [2, 4]
    assert ranked[1][:2] == ranked[0]
    assert found.measures["matches"] == 2


def test_no_evidence_is_no_call_of_the_cross_encoder_that_breaks():
    found, tools = reordered(overlap, {"retrieval_threshold": 1.0})
    assert (found.prediction.is_blank, found.prediction.error, tools.calls) == (True, None, [])


def test_a_cross_encoder_that_fails_is_a_blank_row_with_the_error():
    def broken(query, text):
        raise ModelError("the cross-encoder broke on 4 pairs: out of memory")

    found, tools = reordered(broken)
    assert found.prediction.is_blank
    assert found.prediction.error == "ModelError: the cross-encoder broke on 4 pairs: out of memory"
    assert tools.calls == []


# ---- the declaration


def test_uses_says_what_is_asked():
    uses = SYSTEM.uses(settings())
    assert (uses.roles, uses.attempts, uses.cross_encoder, uses.images) == (("answer",), 3, None, ())
    assert dict(uses.views) == {"nodes": Depth(dense=9)}
    more = {"queries": 3, "bm25_top_k": 5, "cross_encoder": "pairs", "max_context_tokens": 700}
    uses = SYSTEM.uses(settings(more, max_retries=1))
    assert (set(uses.roles), uses.attempts, uses.cross_encoder) == ({"answer", "plan"}, 2, "pairs")
    assert dict(uses.views) == {"nodes": Depth(dense=6), "paragraphs": Depth(lexical=5)}
    assert uses.context_tokens == 700


@pytest.mark.parametrize("queries", [1, 3])
def test_the_opening_calls_are_those_that_prepare_makes(queries):
    tools, config = tools_for(), settings({"queries": queries})
    prepared(tools, config)
    opening = [(ask.role, ask.prompt, ask.schema) for ask in SYSTEM.opening(QUESTION, tools.prompts, config)]
    assert [(call.role, call.prompt, call.schema) for call in tools.calls] == opening
    assert len(opening) == (queries > 1)
