import asyncio
import json
from dataclasses import replace

import pytest
from kit.rows import check_rows
from kit.scripted_tools import ScriptedTools, library, words

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.records import Question, Reply, TraceRow
from kohaku_ray.retrieval.context import Context
from kohaku_ray.retrieval.evidence import rank
from kohaku_ray.systems.base import Depth
from kohaku_ray.systems.kohaku import SYSTEM, answer, prepare
from kohaku_ray.systems.kohaku.prepare import answer_prompt, opening
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


def settings(**changed):
    small = {"queries": 1, "top_k": 3, "top_k_final": None, "bm25_top_k": 0, "section_tokens": 0}
    return KohakuSettings(**small | changed)


def reply(value="12", refs=("energy",), **fields):
    body = {"explanation": "It says so.", "answer": f"It is {value}.", "answer_value": value, "answer_unit": "MW"}
    return json.dumps(body | {"ref_id": list(refs)} | fields)


BLANK = reply("is_blank", ())
UNREADABLE = "no idea"
OVERFLOW = ContextOverflowError("too long")
LOOP = Reply('{"explanation": "' + "It draws power. " * 60, finish_reason="length", completion_tokens=1024)


def scripted(answers, plan=PLAN):
    """A script that gives the plan to the planner and these replies, in order, to everything else."""
    left = iter(answers)
    return lambda call: plan if call.role == "plan" else next(left)


def tools_for(*answers, plan=PLAN, **fields):
    return ScriptedTools(INDEX, scripted(answers, plan), SYSTEM, **fields)


def prepared(tools, config, question=QUESTION):
    return asyncio.run(prepare(question, tools, config))


def answered(tools, config, question=QUESTION):
    async def run():
        return await answer(await prepare(question, tools, config), tools, config)

    return asyncio.run(run())


def asked(*answers, plan=PLAN, window_tokens=None, max_tokens=None, pair_score=None, **changed):
    """What is answered with these settings, and the tools that were asked."""
    limits = {"window_tokens": window_tokens, "max_tokens": max_tokens}
    tools = tools_for(*answers, plan=plan, pair_score=pair_score, **limits)
    return answered(tools, settings(**changed)), tools


def each_attempt(config, n, tools=tools_for):
    """What the answer is when attempt 0, 1, … n - 1 is the first that is not blank."""
    return [answered(tools(*[BLANK] * number, reply()), config) for number in range(n)]


def rows_of(result, step):
    return [row for row in result.trace if row.step == step]


def matches(result):
    """Of the attempt that the answer is from."""
    rows = rows_of(result, "evidence")
    return [row.node_id for row in rows if row.attempt == result.prediction.attempt]


def snippets(call):
    return call.prompt.variables["snippets"]


def answer_calls(tools):
    return [call for call in tools.sent if call.role == "answer"]


# ---- prepare


@pytest.mark.parametrize(("queries", "searched"), [(1, []), (3, QUERIES)])
def test_the_plan_adds_queries_to_the_question(queries, searched):
    tools, config = tools_for(), settings(queries=queries)
    evidence = prepared(tools, config)
    assert evidence.queries == (QUESTION.text, *searched)
    assert evidence.trace == tuple(TraceRow("plan", position, query) for position, query in enumerate(evidence.queries))
    opening = [(ask.role, ask.prompt, ask.schema) for ask in SYSTEM.opening(QUESTION, tools.prompts, config)]
    assert [(call.role, call.prompt, call.schema) for call in tools.sent] == opening
    assert len(opening) == (queries > 1)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("I cannot plan.", "JSON object with queries"),
        (ModelError("the server said 400"), "ModelError: the server said 400"),
        (ContextOverflowError("32,000 tokens but the window is 8,192"), "ContextOverflowError: 32,000 tokens"),
    ],
)
def test_a_failed_plan_falls_back_to_the_question(plan, message):
    tools = tools_for(reply(), plan=plan)
    config = settings(queries=3)
    evidence = prepared(tools, config)
    assert evidence.queries == (QUESTION.text,)
    (row,) = evidence.trace
    assert (row.step, row.rank, row.text) == ("plan", 0, QUESTION.text)
    assert message in row.error
    result = asyncio.run(answer(evidence, tools, config))
    assert not result.prediction.is_blank
    assert rows_of(result, "plan") == [], "the engine writes prepare's rows once, for all members"


def test_everything_is_searched_once_at_the_deepest():
    _, tools = asked(BLANK, BLANK, reply(), queries=3, bm25_top_k=2, max_retries=2)
    *searches, nodes = tools.asked
    queries = (QUESTION.text, *QUERIES)
    assert searches == [("embed", queries), ("search", "nodes", 3, 9), ("lexical", "paragraphs", queries, 2)]
    assert nodes[0] == "nodes"
    assert len(answer_calls(tools)) == 3


def ranked(evidence, top_k):
    """The ids of the evidence's nodes, ranked by a depth's hits."""
    rows = rank(
        evidence,
        top_k=top_k,
        top_k_final=top_k,
        strategy="combined",
        normalise="max",
        alpha=0.4,
        dedup="node",
        bm25_top_k=0,
    ).rows
    return [evidence.nodes.node_id(row) for row in rows]


# ---- answer


def test_a_good_reply_is_the_prediction():
    answer, tools = asked(reply("12", ("energy", "mars")))
    prediction = answer.prediction
    assert (prediction.answer_value, prediction.ref_ids, prediction.n_foreign_refs) == ("12", ("energy",), 1)
    assert (prediction.is_blank, prediction.attempt, prediction.error) == (False, 0, None)
    (call,) = answer_calls(tools)
    assert answer.reply == reply("12", ("energy", "mars"))
    evidence = rows_of(answer, "evidence")
    assert answer.measures == {
        "matches": len(evidence),
        "snippets": len(snippets(call)),
        "characters": sum(len(text) for _, text in snippets(call)),
        "context_tokens": sum(row.scores["n_tokens"] for row in evidence),
        "cut": 0,
        "overflowed": 0,
    }
    assert (evidence[0].rank, evidence[0].doc_id, evidence[0].note) == (0, "energy", "dense")


def test_the_trace_says_what_was_matched_and_what_was_shown():
    plan, changed = json.dumps([QUESTION.text.lower() + " now"]), {"queries": 2, "top_k": 2, "bm25_top_k": 3}
    answer, tools = asked(BLANK, reply(), plan=plan, max_retries=1, **changed)
    assert {row.attempt for row in answer.trace} == {0, 1}, "the attempt that was blank, too"
    evidence, context = ([row for row in rows_of(answer, step) if row.attempt] for step in ("evidence", "context"))
    assert len(evidence) + len(context) == sum(row.attempt for row in answer.trace)
    for rows in (evidence, context):
        assert [row.rank for row in rows] == list(range(len(rows)))
    for row in evidence:
        node = INDEX.row_of(row.node_id)
        assert (row.text, row.doc_id, row.error) == (INDEX.text_of(node), INDEX.doc_id(node), None)
        assert row.kind == ("sentence" if ":s" in row.node_id.split(":p")[1] else "paragraph")
        dense_scores = {"frequency", "similarity", "max_similarity"} if row.note == "dense" else set()
        assert set(row.scores) == {"score", "n_tokens"} | dense_scores
        assert row.scores.get("frequency", 2) == 2
    notes = [row.note for row in evidence]
    assert notes == sorted(notes)
    assert set(notes) == {"dense", "lexical"}
    assert [(row.doc_id, row.text) for row in context] == list(snippets(answer_calls(tools)[1]))
    kinds = {row.node_id: row.kind for row in evidence}
    assert [row.kind for row in context] == [kinds[row.node_id] for row in context]


def test_question_unit_type_and_order_reach_the_prompt():
    tools = tools_for(reply(answer_unit=""))
    assert answered(tools, settings(prompt_order="question_first")).prediction.answer_unit == "MW"
    text = answer_calls(tools)[0].prompt.user
    assert "MW" in text
    assert text.index(QUESTION.text) < text.index("[ref_id=energy]")


@pytest.mark.parametrize("constrain", [True, False])
def test_the_schema_lists_the_documents_of_the_context_and_bounds_every_string(constrain):
    _, tools = asked(reply(), max_tokens=300, constrain_refs=constrain)
    (call,) = answer_calls(tools)
    shown = list(dict.fromkeys(ref_id for ref_id, _ in snippets(call)))
    fields = call.schema["properties"]
    assert fields["ref_id"]["items"].get("enum") == (shown if constrain else None)
    assert fields["explanation"] == fields["answer"] == {"type": "string", "maxLength": 300}


def test_the_schema_bounds_the_references_and_short_instructions_reach_the_prompt():
    _, tools = asked(reply(), max_refs=1, instructions="short")
    (call,) = answer_calls(tools)
    assert call.schema["properties"]["ref_id"]["maxItems"] == 1
    assert "the number that this sentence gives" in call.prompt.user
    assert list(call.schema["properties"]) == ["explanation", "answer_value", "answer_unit", "ref_id"]


@pytest.mark.parametrize(
    ("explanation", "refs", "cited"),
    [
        ("Cooling draws more.", ("water",), ("energy",)),
        ("Water cools the racks.", (), ("water",)),
        ("zzz", ("water",), ("water",)),  # it says nothing that a passage says
    ],
)
def test_the_explanation_says_which_document_an_answer_comes_from(explanation, refs, cited):
    text = reply(refs=refs, explanation=explanation)
    answer, _ = asked(text, top_k=12, cite="explanation")
    assert (answer.prediction.ref_ids, answer.prediction.flags, answer.prediction.is_blank) == (cited, (), False)
    answer, _ = asked(reply("is_blank", (), explanation=explanation), top_k=12, cite="explanation", max_retries=0)
    assert answer.prediction.ref_ids == ()


def test_a_citation_stays_where_its_document_states_the_value_and_the_quoted_passage_does_not():
    """q009 of WattBot (truth6.md 1.5); an explanation often quotes what stands beside the answer."""
    text = reply("racks", refs=("water",), explanation="Cooling draws more.")
    answer, _ = asked(text, top_k=12, cite="explanation")
    assert answer.prediction.ref_ids == ("water",)


def test_a_document_may_be_cited_by_its_file():
    answer, _ = asked(reply(refs=("reports/energy.pdf",)), top_k=12)
    assert (answer.prediction.ref_ids, answer.prediction.is_blank) == (("energy",), False)


def test_a_blank_is_asked_again_with_deeper_evidence_reranked_at_each_depth():
    tools = tools_for(BLANK, BLANK, reply())
    config = settings(top_k=1, top_k_final=1, dedup="node", max_retries=3)
    answer = answered(tools, config)
    assert answer.prediction.attempt == 2
    assert [call.attempt for call in answer_calls(tools)] == [0, 1, 2]
    blank = asked(BLANK, BLANK, BLANK, max_retries=2)[0]
    assert blank.prediction.attempt == 2
    steps = {(row.attempt, row.step) for row in blank.trace}
    assert steps >= {(n, step) for n in range(3) for step in ("evidence", "context")}, "each attempt's, not the last's"
    attempts = each_attempt(config, 3)
    assert [attempt.measures["matches"] for attempt in attempts] == [1, 2, 3]
    evidence = prepared(tools_for(), config)
    assert [matches(attempt) for attempt in attempts] == [ranked(evidence, k) for k in (1, 2, 3)]
    assert answer == attempts[2]


def test_a_retry_may_search_deeper_for_the_same_places():
    attempts = each_attempt(settings(top_k=2, top_k_final=2, dedup="node", max_retries=2, widen_final=False), 3)
    assert [attempt.measures["matches"] for attempt in attempts] == [2, 2, 2]
    evidence = prepared(tools_for(), settings(top_k=2, max_retries=2))
    assert [matches(attempt) for attempt in attempts] == [ranked(evidence, 2 * (number + 1))[:2] for number in range(3)]


PLANS = (["training power"], ["owls hunt at night", "crows count the figures"], ["rain lakes racks"])
"""A plan for each attempt, none of them about the same as another."""


def replanned(*answers, **changed):
    """Answer with a plan of its own per attempt; returns the answer, and the tools that were asked."""
    left = iter(answers)

    def script(call):
        return json.dumps({"queries": PLANS[call.attempt]}) if call.role == "plan" else next(left)

    tools = ScriptedTools(INDEX, script, SYSTEM)
    return answered(tools, settings(**{"queries": 3, "top_k": 2, "max_retries": 2, "replan": True} | changed)), tools


@check_rows(("spare", "asked"), [(True, 3), (False, 2)])
def test_the_planner_is_asked_for_a_spare_query_or_as_published_for_those_beside_the_question(spare, asked):
    [ask] = opening(QUESTION, SYSTEM.prompts(), settings(queries=3, spare_query=spare))
    assert f"Write {asked} search queries" in str(ask.prompt)
    assert ask.schema["properties"]["queries"]["minItems"] == asked


def test_with_replan_each_attempt_plans_with_its_own_seed_and_searches_its_own_queries_to_its_depth():
    answer, tools = replanned(BLANK, BLANK, reply())
    assert [(call.role, call.attempt) for call in tools.sent] == [
        (role, attempt) for attempt in range(3) for role in ("plan", "answer")
    ]
    assert len({call.prompt.user for call in tools.sent if call.role == "plan"}) == 1, (
        "the seed differs, not the prompt"
    )
    searches = [call for call in tools.asked if call[0] in ("embed", "search")]
    assert searches == [
        call
        for position, plan in enumerate(PLANS)
        for call in (("embed", (QUESTION.text, *plan)), ("search", "nodes", 1 + len(plan), 2 * (position + 1)))
    ]
    texts = ["".join(text for _, text in snippets(call)) for call in answer_calls(tools)]
    assert [("Owls" in text, "lakes" in text) for text in texts] == [(False, False), (True, False), (False, True)]
    planned = [(row.attempt, row.text) for row in rows_of(answer, "plan")]
    assert planned == [(attempt, query) for attempt in (1, 2) for query in (QUESTION.text, *PLANS[attempt])], (
        "prepare has attempt 0's"
    )
    assert {row.attempt for row in rows_of(answer, "evidence")} == {0, 1, 2}


def test_with_replan_an_answer_at_once_plans_once_as_without_it():
    (result, tools), (plain, alone) = replanned(reply()), replanned(reply(), replan=False)
    assert result == plain
    assert tools.sent == alone.sent
    kept, more = replanned(reply(refs=()), BLANK, BLANK), replanned(BLANK, reply())
    assert (kept[0].prediction.attempt, more[0].prediction.attempt) == (0, 1)


def test_members_that_replan_differently_do_not_share_what_the_model_is_shown():
    config, shared = settings(queries=2, top_k=2, max_retries=1, replan=True), {}

    def tools_of(query):
        answers = iter([BLANK, reply()])
        plans = {0: QUERIES[0], 1: query}
        script = lambda call: json.dumps([plans[call.attempt]]) if call.role == "plan" else next(answers)  # noqa: E731
        tools = ScriptedTools(INDEX, script, SYSTEM)
        tools.shared = shared
        return tools

    async def run():
        members = [tools_of("owls hunt"), tools_of("rain fills lakes"), tools_of("owls hunt")]
        evidence = await prepare(QUESTION, members[0], config)
        results = await asyncio.gather(*(answer(evidence, tools, config) for tools in members))
        return [answer_calls(tools)[1].prompt for tools in members], results

    prompts, results = asyncio.run(run())
    assert prompts[0] == prompts[2] != prompts[1]
    assert "lakes" in prompts[1].user
    assert [item.prediction.attempt for item in results] == [1, 1, 1]


def test_a_replan_that_fails_falls_back_to_the_question_and_says_so():
    def script(call):
        if call.role == "plan":
            return PLAN if call.attempt == 0 else "I cannot plan."
        return BLANK if call.attempt == 0 else reply()

    tools = ScriptedTools(INDEX, script, SYSTEM)
    answer = answered(tools, settings(queries=3, max_retries=1, replan=True))
    assert (answer.prediction.attempt, answer.prediction.is_blank) == (1, False)
    [row] = rows_of(answer, "plan")
    assert (row.text, row.attempt) == (QUESTION.text, 1)
    assert "JSON object with queries" in row.error


def test_without_a_bound_a_matched_paragraph_brings_its_whole_section():
    sentences = [f"Filler number {number} says nothing of it." for number in range(400)]
    book = library(book=[("Power", [" ".join(sentences[:200]), "Training draws 12 MW.", " ".join(sentences[200:])])])
    shown = {}
    for bound in (512, None):
        tools = ScriptedTools(book, scripted([reply(refs=("book",))]), SYSTEM)
        config = settings(top_k=2, section_tokens=bound, max_context_tokens=None)
        assert rows_of(answered(tools, config), "evidence")[0].kind in ("sentence", "paragraph")
        shown[bound] = " ".join(text for _, text in snippets(answer_calls(tools)[0]))
    assert all(sentence in shown[None] for sentence in sentences)
    assert 0 < sum(sentence in shown[512] for sentence in sentences) < 120


def test_the_budget_grows_with_the_attempt():
    attempts = each_attempt(settings(top_k=9, max_context_tokens=8, max_retries=2), 3)
    spent = [attempt.measures["context_tokens"] for attempt in attempts]
    assert [8 * (position + 1) >= n > 8 * position for position, n in enumerate(spent)] == [True] * 3
    assert [attempt.measures["cut"] for attempt in attempts] == [1] * 3
    unbounded = asked(reply(), top_k=9, max_context_tokens=None)[0]
    assert unbounded.measures["context_tokens"] > 24
    assert not unbounded.measures["cut"]


def test_the_window_bounds_every_attempt():
    """The documents, the rest of the prompt and the longest reply together fit the model."""
    full = asked(reply(), top_k=20, max_context_tokens=None)[0]
    everything = int(full.measures["context_tokens"])
    prompt = answer_prompt(tools_for().prompts, QUESTION, Context((), (), (), (), 0, False), settings(), None)
    bare = len("".join(text for _, text in prompt.messages)) / 3
    config = settings(top_k=20, max_context_tokens=None, max_retries=1)

    def narrow(*answers):
        return tools_for(*answers, window_tokens=int(bare) + 50 + everything, max_tokens=50)

    attempts = each_attempt(config, 2, narrow)
    assert [attempt.prediction.attempt for attempt in attempts] == [0, 1]
    assert all(0 < a.measures["context_tokens"] < everything and a.measures["cut"] for a in attempts)


def test_a_window_too_small_for_any_evidence_says_so():
    answer, tools = asked(window_tokens=300, max_retries=0)
    assert answer.prediction.is_blank
    assert "not one sentence of the evidence fits" in answer.prediction.error
    assert tools.sent == []


def test_no_evidence_is_an_abstention_without_a_call():
    answer, tools = asked(retrieval_threshold=1.0, max_retries=1)
    assert (answer.prediction.is_blank, answer.prediction.error, answer.trace) == (True, None, ())
    assert (answer.prediction.explanation, answer.prediction.attempt) == ("No evidence was found.", 1)
    assert (answer.reply, tools.sent) == (None, [])


def test_fused_bm25_ranks_sentences_and_paragraphs_by_both_and_appends_none():
    tools = tools_for(reply(refs=("water",)))
    answer = answered(tools, settings(top_k=4, bm25="fuse", dedup="node"), Question("q2", "Rain lakes racks?"))
    evidence = rows_of(answer, "evidence")
    scores = [row.scores["score"] for row in evidence]
    assert scores == sorted(scores, reverse=True)
    by_both = 2 / (10 + 1)  # first by vectors and by terms: reciprocal ranks at k = 10
    assert (evidence[0].node_id, evidence[0].scores["score"]) == ("water:sec1:p0", pytest.approx(by_both))
    assert {"dense", "lexical"} >= {row.note for row in evidence}
    deeper = prepared(tools, settings(top_k=4, bm25="fuse", max_retries=1), Question("q2", "Rain lakes racks?"))
    assert len(deeper.lexical[0]) > 2  # searched to the depth of the last retry, beyond `bm25_top_k`, which is 0


def test_bm25_paragraphs_come_behind_and_are_marked():
    tools = tools_for(reply())
    question = Question("q2", "Rain lakes racks?")
    answer = answered(tools, settings(top_k=1, bm25_top_k=3), question)
    evidence = rows_of(answer, "evidence")
    assert [row.note for row in evidence] == ["dense", "lexical", "lexical"]
    assert "water:sec0:p0" in matches(answer)[1:]
    assert [row.scores.get("frequency") for row in evidence] == [1, None, None]


# ---- bad replies


@pytest.mark.parametrize("bad", ["", "no idea", '{"answer_value": "12', "\x00\ud800"])
def test_an_unreadable_reply_is_asked_again_and_then_blank_with_the_reason(bad):
    answer, _ = asked(bad, bad, max_retries=1)
    assert answer.prediction.is_blank
    assert answer.prediction.error.startswith("no JSON object")
    assert (answer.prediction.attempt, answer.reply) == (1, bad)
    mended = asked(bad, reply(), max_retries=1)[0].prediction
    assert (mended.answer_value, mended.error, mended.attempt) == ("12", None, 1)


CUT = Reply('{"explanation": "the dr', finish_reason="length", prompt_tokens=100, completion_tokens=1024)


CUT_BY_WINDOW = replace(CUT, prompt_tokens=3000)


@check_rows(
    ("replies", "calls", "error"),
    [
        ([CUT, reply()], [(0, None), (0, 2048)], None),
        ([CUT, Reply(BLANK), reply()], [(0, None), (0, 2048), (1, None)], None),
        ([CUT, Reply(UNREADABLE), reply()], [(0, None), (0, 2048), (1, None)], None),
        ([CUT, CUT], [(0, None), (0, 2048)], "cut at 1024 tokens: raise max_tokens"),
        ([CUT_BY_WINDOW], [(0, None)], "was cut"),
        ([LOOP, reply()], [(0, None), (1, None)], None),
        ([LOOP, LOOP], [(0, None), (1, None)], "it repeats itself"),
    ],
)
def test_a_reply_cut_off_is_asked_again_with_more_room_and_a_loop_deeper(replies, calls, error):
    answer, tools = asked(*replies, window_tokens=4000, max_retries=1)
    assert [(call.attempt, call.max_tokens) for call in tools.sent] == calls
    assert answer.prediction.answer_value == ("" if error else "12")
    assert answer.prediction.error is None if error is None else error in answer.prediction.error
    assert answer.reply == (replies[-1] if error is None else replies[-1].text)
    assert [row.text for row in answer.other_replies] == [reply.text for reply in replies[:-1]]


@check_rows(
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
    answer = asked(*replies, max_retries=1)[0]
    assert (answer.prediction.answer_value, answer.prediction.is_blank) == (value, not value)
    assert answer.prediction.error is None if error is None else error in answer.prediction.error
    assert len(answer.other_replies) == n_other
    texts_read = [answer.reply, *(row.text for row in answer.other_replies)]
    texts = [reply if isinstance(reply, str) else getattr(reply, "text", "") for reply in replies]
    assert sorted(text or "" for text in texts_read) == sorted(texts)


def test_an_answer_that_cites_nothing_is_blank():
    answer = asked(reply(refs=()), reply(refs=("mars",)), max_retries=1)[0]
    assert (answer.prediction.is_blank, answer.prediction.answer_value) == (True, "")
    assert answer.prediction.flags == ("uncited",)
    assert [row.note for row in answer.other_replies] == ["uncited, blank"]


def test_what_a_plan_drops_stands_in_the_trace():
    plan = json.dumps({"queries": ["training power", "5.9KM"]})
    evidence = prepared(tools_for(plan=plan), settings(queries=3))
    assert evidence.queries == (QUESTION.text, "training power")
    rows = [(row.rank, row.text, row.note) for row in evidence.trace]
    assert rows[2:] == [(2, "5.9KM", "not searched: it shares no word with the question")]


def test_a_model_that_fails_is_a_blank_row_with_the_error():
    answer, tools = asked(BLANK, ModelError("HTTP 400"), reply(), max_retries=2)
    assert (answer.prediction.is_blank, answer.prediction.error) == (True, "ModelError: HTTP 400")
    assert (answer.prediction.attempt, answer.reply) == (1, None)
    assert [call.attempt for call in tools.sent] == [0, 1]


# ---- overflow


def test_an_overflow_is_asked_once_more_with_fewer_matches():
    tools, config = tools_for(OVERFLOW, reply()), settings(top_k=5, top_k_final=5, dedup="node")
    answer = answered(tools, config)
    assert (answer.measures["overflowed"], answer.prediction.is_blank) == (1, False)
    long, short = answer_calls(tools)
    assert (long.attempt, short.attempt, answer.prediction.attempt) == (0, 0, 0)
    assert len(snippets(short)) < len(snippets(long))
    assert matches(answer) == ranked(prepared(tools_for(), config), 3)[: len(matches(answer))] != []


def test_windows_are_another_context_of_the_same_evidence_and_budget():
    shown = []
    for context in ("groups", "windows"):
        answer, tools = asked(reply(), top_k=8, max_context_tokens=14, context=context)
        shown.append(snippets(answer_calls(tools)[0]))
        assert 0 < answer.measures["context_tokens"] <= 14
        assert answer.prediction.answer_value == "12"
    assert shown[0] != shown[1]
    assert len(set(shown[1])) == len(shown[1]) > 0


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_an_overflow_shortens_a_context_that_the_budget_had_cut(top_k):
    _, tools = asked(OVERFLOW, reply(), top_k=top_k, max_context_tokens=14, section_tokens=50)
    long, short = ("".join(text for _, text in snippets(call)) for call in answer_calls(tools))
    assert 0 < len(short) < len(long)


@pytest.mark.parametrize(
    ("second", "changed", "error"),
    [
        (ContextOverflowError("still too long"), {"top_k": 5}, "still too long"),
        (reply(), {"top_k": 1, "max_context_tokens": 6}, "too long"),  # less than that is nothing to show
    ],
)
def test_an_overflow_that_cannot_be_mended_ends_the_attempts(second, changed, error):
    answer, tools = asked(OVERFLOW, second, reply(), max_retries=2, **changed)
    assert answer.prediction.is_blank
    assert answer.prediction.error == f"ContextOverflowError: {error}"
    assert len(tools.sent) == (2 if error.startswith("still") else 1)
    assert (answer.prediction.attempt, answer.measures["overflowed"]) == (0, 1)


def test_after_an_overflow_the_next_attempt_is_deep_again():
    answer, tools = asked(OVERFLOW, BLANK, reply(), top_k=4, dedup="node", max_retries=1)
    assert [call.attempt for call in tools.sent] == [0, 0, 1]
    assert (answer.prediction.attempt, answer.measures["overflowed"], answer.measures["matches"]) == (1, 0, 8)


# ---- cross-encoder


def overlap(query, text):
    return float(len(words(query) & words(text)))


def reordered(score, *answers, **changed):
    given = {"top_k": 4, "dedup": "node", "cross_encoder": "pairs"} | changed
    answer, tools = asked(*(answers or [reply()]), pair_score=score, **given)
    return answer, tools, [call[1] for call in tools.asked if call[0] == "rank_pairs"]


def test_the_cross_encoder_orders_all_that_was_ranked_before_it_is_cut():
    plain, _ = asked(reply(), top_k=4, dedup="node")
    answer, _, [pairs] = reordered(lambda query, text: -len(text), top_k_final=2)
    texts = [row.text for row in rows_of(plain, "evidence")]
    assert pairs == tuple((QUESTION.text, text) for text in texts)
    assert len(texts) == 4
    best = sorted(texts, key=len)[:2]
    assert best != texts[:2]
    evidence = rows_of(answer, "evidence")
    assert [row.text for row in evidence] == best
    assert [row.scores["score"] for row in evidence] == [-len(text) for text in best]
    assert matches(reordered(lambda *_: 0.5)[0]) == matches(plain), "ties keep the order of the queries"


def test_the_cut_may_come_before_deduplication_and_before_the_cross_encoder():
    settings = {"queries": 3, "top_k": 4, "top_k_final": 6, "rerank": "none", "dedup": "node"}
    filled = matches(asked(reply(), **settings)[0])
    cut = matches(asked(reply(), **settings, truncate="before_dedup")[0])
    every = matches(asked(reply(), **settings | {"dedup": "none", "top_k_final": None})[0])
    assert cut == list(dict.fromkeys(every[:6]))
    assert filled == list(dict.fromkeys(every))[:6]
    assert len(cut) < len(filled)
    answer, _, [pairs] = reordered(overlap, reply(), **settings, truncate="before_dedup")
    assert len(pairs) == len(cut)
    assert sorted(matches(answer)) == sorted(cut)


def test_bm25_comes_behind_what_the_cross_encoder_keeps_and_is_not_scored_by_it():
    answer, _, [pairs] = reordered(overlap, top_k_final=1, bm25_top_k=3)
    evidence = rows_of(answer, "evidence")
    assert [row.note for row in evidence] == ["dense", *["lexical"] * (len(evidence) - 1)]
    assert len(evidence) > 1
    assert len(pairs) == 4
    assert evidence[0].scores["score"] == max(overlap(*pair) for pair in pairs)


def test_a_cross_encoder_that_has_no_evidence_or_fails_asks_no_model():
    def broken(query, text):
        raise ModelError("the cross-encoder broke on 4 pairs: out of memory")

    answer, tools, _ = reordered(overlap, retrieval_threshold=1.0)
    assert (answer.prediction.is_blank, answer.prediction.error, tools.sent) == (True, None, [])
    answer, tools, _ = reordered(broken)
    assert (answer.prediction.is_blank, tools.sent) == (True, [])
    assert answer.prediction.error == "ModelError: the cross-encoder broke on 4 pairs: out of memory"


# ---- the declaration


def test_uses_says_what_is_asked():
    uses = SYSTEM.uses(settings())
    assert (uses.roles, uses.attempts, uses.cross_encoder, uses.images) == (("answer",), 3, None, ())
    assert dict(uses.views) == {"nodes": Depth(dense=9)}
    more = {"queries": 3, "bm25_top_k": 5, "cross_encoder": "pairs", "max_context_tokens": 700, "max_retries": 1}
    uses = SYSTEM.uses(settings(**more))
    assert (set(uses.roles), uses.attempts, uses.cross_encoder) == ({"answer", "plan"}, 2, "pairs")
    assert dict(uses.views) == {"nodes": Depth(dense=6), "paragraphs": Depth(lexical=5)}
    assert uses.context_tokens == 700
