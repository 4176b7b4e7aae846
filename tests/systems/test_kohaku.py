import asyncio
import json
import pickle

import numpy as np
import pytest
from inprocess import InProcessTools, library

from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ContextOverflowError, ModelError, TransientModelError
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import Question, Reply
from kohaku_ray.systems import kohaku

QUESTION = Question("q1", "How much power does training draw?", answer_unit="MW", answer_type="number")
PLAN = json.dumps(["training power draw in megawatts", "electric load of model training"])
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
    return Config.model_validate({"retrieval": small | (retrieval or {}), "generation": generation})


def reply(value="12", refs=("energy",), **fields):
    body = {"explanation": "It says so.", "answer": f"It is {value}.", "answer_value": value, "answer_unit": "MW"}
    return json.dumps(body | {"ref_id": list(refs), "is_blank": False} | fields)


BLANK = reply("is_blank", (), is_blank=True)


def scripted(answers, plan=PLAN):
    """A script that gives the plan to the planner and these replies, in order, to everything else."""
    left = iter(answers)
    return lambda call: plan if call.role == "plan" else next(left)


def tools_for(*answers, plan=PLAN, **fields):
    return InProcessTools(INDEX, scripted(answers, plan), **fields)


def prepared(tools, config, question=QUESTION):
    return asyncio.run(kohaku.prepare(question, tools, config))


def answered(tools, config, question=QUESTION):
    async def run():
        return await kohaku.answer(await kohaku.prepare(question, tools, config), tools, config)

    return asyncio.run(run())


def snippets(call):
    return call.prompt.variables["snippets"]


def answer_calls(tools):
    return [call for call in tools.calls if call.role == "answer"]


# ---- prepare


def test_one_query_asks_no_planner():
    tools = tools_for()
    evidence = prepared(tools, settings())
    assert evidence.queries == (QUESTION.text,)
    assert (evidence.plan, evidence.plan_error) == (None, None)
    assert tools.calls == []


def test_the_plan_adds_queries_to_the_question():
    tools = tools_for()
    evidence = prepared(tools, settings({"queries": 3}))
    assert evidence.queries == (QUESTION.text, *json.loads(PLAN))
    assert evidence.plan.prompt_tokens == 100
    assert evidence.plan_error is None
    (call,) = tools.calls
    assert (call.role, call.attempt, call.schema["maxItems"]) == ("plan", 0, 3)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("I cannot plan.", "JSON array"),
        ("", "empty"),
        ('{"queries": "power"}', "JSON array"),
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
    assert message in evidence.plan_error
    assert not asyncio.run(kohaku.answer(evidence, tools, config)).prediction.is_blank


def test_everything_is_searched_once_at_the_deepest():
    tools = tools_for(BLANK, BLANK, reply())
    answered(tools, settings({"queries": 3, "bm25_top_k": 2}, max_retries=2))
    assert [call for call in tools.asked if call[0] in ("embed", "search")] == [
        ("embed", (QUESTION.text, *json.loads(PLAN))),
        ("search", 3, 9),
    ]
    assert [call[2] for call in tools.asked if call[0] == "lexical"] == [2]
    assert [call[0] for call in tools.asked].count("nodes") == 1
    assert len(answer_calls(tools)) == 3


def test_without_bm25_nothing_lexical_is_asked():
    tools = tools_for()
    assert prepared(tools, settings()).lexical == ()
    assert "lexical" not in [call[0] for call in tools.asked]


def test_every_hit_of_the_search_is_used():
    """The published code filtered by node kind after top-k: most queries came back with fewer than k."""
    evidence = prepared(tools_for(), settings({"top_k": 4}, max_retries=0))
    assert [len(hits) for hits in evidence.dense] == [4]
    assert len(kohaku.rank(evidence, **RANK | {"dedup": "node"})) == 4


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
    answer = answered(tools, settings())
    prediction = answer.prediction
    assert (prediction.answer_value, prediction.ref_ids, prediction.n_foreign_refs) == ("12", ("energy",), 1)
    assert (prediction.is_blank, prediction.attempt, prediction.error) == (False, 0, None)
    (attempt,) = answer.attempts
    assert attempt.reply.prompt_tokens == 100
    assert attempt.n_snippets == len(snippets(answer_calls(tools)[0])) > 0
    assert attempt.n_chars == sum(len(text) for _, text in snippets(answer_calls(tools)[0]))
    assert attempt.n_tokens == sum(match.n_tokens for match in answer.matches)
    assert (answer.matches[0].rank, answer.matches[0].doc_id, answer.matches[0].source) == (0, "energy", "dense")


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
    answer = answered(tools, config)
    assert answer.prediction.attempt == 2
    assert [call.attempt for call in answer_calls(tools)] == [0, 1, 2]
    assert [attempt.n_matches for attempt in answer.attempts] == [1, 2, 3]
    evidence = prepared(tools_for(), config)
    expected = [kohaku.rank(evidence, **RANK | {"top_k": k, "top_k_final": k, "dedup": "node"}) for k in (1, 2, 3)]
    ids = [evidence.nodes.node_id(row) for row in expected[2].rows]
    assert [match.node_id for match in answer.matches] == ids


def test_frequency_changes_the_order_as_the_lists_grow():
    """Rank 2 of both queries beats either's rank 1 once depth 2 is looked at."""
    rows = {name: INDEX.row_of(name) for name in ("energy:sec1:p0", "water:sec1:p0", "birds:sec0:p0")}
    first, second, both = rows["energy:sec1:p0"], rows["water:sec1:p0"], rows["birds:sec0:p0"]

    class Fixed(InProcessTools):
        async def search(self, vectors, top_k):
            return [
                Hits(np.array([first, both]), np.array([0.9, 0.8])),
                Hits(np.array([second, both]), np.array([0.7, 0.6])),
            ]

    tools = Fixed(INDEX, scripted([BLANK, reply()], json.dumps(["other"])))
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
    tools = tools_for(BLANK, BLANK, reply())
    answer = answered(tools, settings({"top_k": 9, "max_context_tokens": 8}, max_retries=2))
    assert [8 * (a.attempt + 1) >= a.n_tokens > 8 * a.attempt for a in answer.attempts] == [True] * 3
    unbounded = answered(tools_for(reply()), settings({"top_k": 9, "max_context_tokens": None}))
    assert unbounded.attempts[0].n_tokens > 24
    assert not unbounded.attempts[0].is_cut


def test_the_window_bounds_every_attempt():
    """The documents, the rest of the prompt and the longest reply together fit the model."""
    everything = answered(tools_for(reply()), settings({"top_k": 20, "max_context_tokens": None})).attempts[0].n_tokens
    bare = len("".join(text for _, text in tools_for().prompts.answer(QUESTION, []).messages)) / 3
    tools = tools_for(BLANK, BLANK, window_tokens=int(bare) + 50 + everything)
    config = settings({"top_k": 20, "max_context_tokens": None}, max_retries=1, max_tokens=50)
    attempts = answered(tools, config).attempts
    assert all(0 < a.n_tokens < everything and a.is_cut for a in attempts)


def test_a_window_too_small_for_any_evidence_says_so():
    tools = tools_for(window_tokens=300)
    prediction = answered(tools, settings(max_retries=0)).prediction
    assert prediction.is_blank
    assert "not one sentence of the evidence fits" in prediction.error
    assert tools.calls == []


def test_no_evidence_is_an_abstention_without_a_call():
    tools = tools_for()
    answer = answered(tools, settings({"retrieval_threshold": 1.0}, max_retries=1))
    assert (answer.prediction.is_blank, answer.prediction.error, answer.matches) == (True, None, ())
    assert answer.prediction.explanation == "No evidence was found."
    assert [attempt.reply for attempt in answer.attempts] == [None, None]
    assert tools.calls == []


def test_bm25_paragraphs_come_behind_and_are_marked():
    tools = tools_for(reply())
    question = Question("q2", "Rain lakes racks?")
    answer = answered(tools, settings({"top_k": 1, "bm25_top_k": 3}), question)
    assert [match.source for match in answer.matches] == ["dense", "lexical", "lexical"]
    assert "water:sec0:p0" in [match.node_id for match in answer.matches[1:]]
    assert [match.frequency for match in answer.matches] == [1, 0, 0]


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
        '{"answer_value": "12"',
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
    answer = answered(tools, settings(max_retries=1))
    assert answer.prediction.is_blank
    assert answer.prediction.error.startswith("no JSON object")
    assert answer.prediction.attempt == 1
    assert len(tools.calls) == 2
    mended = answered(tools_for(bad, reply()), settings(max_retries=1)).prediction
    assert (mended.answer_value, mended.error, mended.attempt) == ("12", None, 1)


def test_a_reply_cut_off_is_asked_once_more_with_more_room_and_then_an_error():
    cut = Reply('{"explanation": "the dr', finish_reason="length", prompt_tokens=100, completion_tokens=1024)
    tools = tools_for(cut, reply())
    assert answered(tools, settings(max_retries=1)).prediction.answer_value == "12"
    assert [call.max_tokens for call in tools.calls] == [None, 2048]
    assert [call.attempt for call in tools.calls] == [0, 0]

    tools = tools_for(cut, cut)
    answer = answered(tools, settings(max_retries=1)).prediction
    assert answer.is_blank
    assert "cut off at 1024 tokens" in answer.error
    assert answer.ref_ids == ()
    assert len(tools.calls) == 2


def test_a_reply_cut_off_by_the_window_itself_is_not_asked_again():
    cut = Reply('{"explanation": "the dr', finish_reason="length", prompt_tokens=3000, completion_tokens=1024)
    tools = tools_for(cut)
    tools.window_tokens = 4000
    assert "cut off" in answered(tools, settings(max_retries=1)).prediction.error
    assert len(tools.calls) == 1


@pytest.mark.parametrize("refs", [[], None, "energy", [None, 3], {"x": 1}, ["is_blank"]])
def test_odd_references_are_no_error(refs):
    prediction = answered(tools_for(json.dumps(json.loads(reply()) | {"ref_id": refs})), settings()).prediction
    assert prediction.answer_value == "12"
    assert set(prediction.ref_ids) <= {"energy"}


@pytest.mark.parametrize("error", [ModelError("HTTP 400"), TransientModelError("timed out six times")])
def test_a_model_that_fails_is_a_blank_row_with_the_error(error):
    tools = tools_for(BLANK, error, reply())
    answer = answered(tools, settings(max_retries=2))
    assert answer.prediction.is_blank
    assert answer.prediction.error == f"{type(error).__name__}: {error}"
    assert answer.prediction.attempt == 1
    assert [attempt.reply is None for attempt in answer.attempts] == [False, True]
    assert len(tools.calls) == 2


# ---- overflow


def test_an_overflow_is_asked_once_more_with_fewer_matches():
    tools = tools_for(ContextOverflowError("too long"), reply())
    config = settings({"top_k": 5, "top_k_final": 5, "dedup": "node"})
    answer = answered(tools, config)
    (attempt,) = answer.attempts
    assert attempt.overflowed
    assert not answer.prediction.is_blank
    long, short = answer_calls(tools)
    assert (long.attempt, short.attempt) == (0, 0)
    assert len("".join(text for _, text in snippets(short))) < len("".join(text for _, text in snippets(long)))
    evidence = prepared(tools_for(), config)
    fewer = kohaku.rank(evidence, **RANK | {"top_k": 3, "top_k_final": 3, "dedup": "node"})
    allowed = [evidence.nodes.node_id(row) for row in fewer.rows]
    assert [match.node_id for match in answer.matches] == allowed[: len(answer.matches)]


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_an_overflow_shortens_a_context_that_the_budget_had_cut(top_k):
    tools = tools_for(ContextOverflowError("too long"), reply())
    answered(tools, settings({"top_k": top_k, "max_context_tokens": 14, "section_tokens": 50}))
    long, short = ("".join(text for _, text in snippets(call)) for call in answer_calls(tools))
    assert 0 < len(short) < len(long)


def test_an_overflow_takes_two_from_what_is_kept_over_all_queries_too():
    tools = tools_for(ContextOverflowError("too long"), reply())
    answer = answered(tools, settings({"top_k": 8, "top_k_final": 3, "paragraph_tokens": 1, "siblings": 0}))
    assert [len(snippets(call)) for call in answer_calls(tools)] == [3, 1]
    assert len(answer.matches) == 1


def test_a_second_overflow_is_a_blank_row_with_the_error():
    tools = tools_for(ContextOverflowError("too long"), ContextOverflowError("still too long"), reply())
    answer = answered(tools, settings({"top_k": 5}, max_retries=2))
    assert answer.prediction.is_blank
    assert answer.prediction.error == "ContextOverflowError: still too long"
    assert len(tools.calls) == 2
    assert answer.attempts[0].overflowed


def test_an_overflow_that_leaves_nothing_to_show_ends_the_attempts():
    tools = tools_for(ContextOverflowError("too long"), reply())
    answer = answered(tools, settings({"top_k": 1, "max_context_tokens": 6}, max_retries=2))
    assert answer.prediction.error == "ContextOverflowError: too long"
    assert (len(tools.calls), len(answer.attempts), answer.attempts[0].overflowed) == (1, 1, True)


def test_after_an_overflow_the_next_attempt_is_deep_again():
    tools = tools_for(ContextOverflowError("too long"), BLANK, reply())
    answer = answered(tools, settings({"top_k": 4, "dedup": "node"}, max_retries=1))
    assert [attempt.overflowed for attempt in answer.attempts] == [True, False]
    assert answer.attempts[1].n_matches == 8


# ---- concurrency


def test_questions_and_members_at_once_do_not_touch_each_other():
    """The published code changed shared settings while other questions were under way."""
    config = settings({"queries": 2, "top_k": 1, "top_k_final": 1, "dedup": "node"}, max_retries=3)
    questions = [
        Question(f"q{n}", text) for n, text in enumerate(["power draw", "water cools", "owls hunt", "old grid"])
    ]
    frozen = config.model_dump_json()

    def script_for(n_blanks, overflows):
        def script(call):
            if call.role == "plan":
                return json.dumps(["training"])
            if overflows and call.attempt == 1:
                return overflows.pop()
            return BLANK if call.attempt < n_blanks else reply(str(n_blanks), ())

        return script

    async def one(question, n_blanks, together):
        tools = InProcessTools(INDEX, script_for(n_blanks, [ContextOverflowError("too long")]))
        evidence = await kohaku.prepare(question, tools, config)
        if together:
            await asyncio.sleep(0)
        return await kohaku.answer(evidence, tools, config)

    async def all_at_once():
        return await asyncio.gather(*(one(question, n, True) for n, question in enumerate(questions)))

    together = asyncio.run(all_at_once())
    alone = [asyncio.run(one(question, n, False)) for n, question in enumerate(questions)]
    assert together == alone
    assert [answer.prediction.attempt for answer in together] == [0, 1, 2, 3]
    assert [len(answer.attempts) for answer in together] == [1, 2, 3, 4]
    assert config.model_dump_json() == frozen


def test_members_share_evidence_without_changing_it():
    tools = tools_for(*[BLANK, reply()] * 4)
    config = settings({"queries": 2}, max_retries=1)
    evidence = prepared(tools, config)
    before = pickle.dumps((evidence.dense, evidence.lexical, evidence.queries))

    async def run():
        return await asyncio.gather(*(kohaku.answer(evidence, tools, config) for _ in range(4)))

    answers = asyncio.run(run())
    assert pickle.dumps((evidence.dense, evidence.lexical, evidence.queries)) == before
    assert len(answers) == 4


def test_an_answer_crosses_processes():
    answer = answered(tools_for(reply()), settings())
    assert pickle.loads(pickle.dumps(answer)) == answer
