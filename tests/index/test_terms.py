import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import scaled
from kit.rows import check_rows
from rank_bm25 import BM25Okapi
from small_index import term_index

from kohaku_ray.documents.lean_imports import nltk_module
from kohaku_ray.errors import DataError
from kohaku_ray.index import terms
from kohaku_ray.index.terms import Statistics, TermCounts, TermIndex, _words, similarities, stop_words, tokenise

WORDS = ["energy", "carbon", "a100-80gb", "water", "co2e", "gpu", "3,000", "kwh", "training", "42"]
texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


def build(paragraphs: list[str], **settings) -> TermIndex:
    return term_index(paragraphs, np.arange(len(paragraphs)) * 10, **settings)


def test_tokens():
    text = "The A100-80GB uses 5.2 kWh. It emits CO2e: $3,000 (20 %), i.e. 'much'!"
    assert tokenise(text) == ["a100-80gb", "uses", "5.2", "kwh", "emits", "co2e", "3,000", "20", "i.e", "much"]
    assert tokenise("GPU's don't — … ' \" state-of-the-art") == ["gpu", "state-of-the-art"]
    assert tokenise("GPT\u20114 is state\u2010of\u2011the\u2011art") == ["gpt-4", "state-of-the-art"]
    assert tokenise("") == []
    assert {"the", "of", "n't"} <= stop_words()


@settings(max_examples=scaled(80))
@given(
    st.lists(texts, min_size=1, max_size=12).filter(lambda given: any(map(str.split, given))),
    st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=8).map(" ".join),
    st.sampled_from([(1.5, 0.75), (0.9, 0.4), (0.1, 0.95)]),
)
def test_scores_are_those_of_rank_bm25(paragraphs, query, k1_b):
    k1, b = k1_b
    okapi = BM25Okapi([tokenise(text) for text in paragraphs], k1=k1, b=b)
    expected = okapi.get_scores(tokenise(query))
    index = build(paragraphs, k1=k1, b=b)
    scores = index.scores([query]).toarray()[0]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    hits = index.search([query], 5)[0]
    order = [paragraph for paragraph in np.lexsort((np.arange(len(expected)), -scores)) if scores[paragraph] != 0]
    assert hits.rows.tolist() == [paragraph * 10 for paragraph in order][:5]


@settings(max_examples=scaled(80))
@given(
    st.lists(texts, min_size=1, max_size=12).filter(lambda given: any(map(str.split, given))),
    st.lists(st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=8).map(" ".join), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3),
    st.sampled_from([(1.5, 0.75), (0.9, 0.4)]),
)
def test_a_search_held_to_a_few_paragraphs_is_rank_bm25s_and_the_same_as_by_the_product(texts, queries, ranges, k1_b):
    k1, b = k1_b
    index, within = build(texts, k1=k1, b=b), tuple((first * 10, last * 10) for first, last in ranges)
    with pytest.MonkeyPatch.context() as patch:
        scored = []

        def counted(okapi, query, get_scores=BM25Okapi.get_scores):
            scored.append(query)
            return get_scores(okapi, query)

        patch.setattr(BM25Okapi, "get_scores", counted)
        held = index.search(queries, 5, within)
        known = set(" ".join(texts).split()) & set(" ".join(queries).split())
        assert bool(scored) == bool(known)
        scored.clear()
        patch.setattr(terms, "MOST_HELD", -1)
        product = index.search(queries, 5, within)
        assert not scored
    okapi = BM25Okapi([tokenise(text) for text in texts], k1=k1, b=b)
    for query, hits, other in zip(queries, held, product, strict=True):
        assert (hits.rows.tolist(), hits.scores.tobytes()) == (other.rows.tolist(), other.scores.tobytes())
        expected = okapi.get_batch_scores(tokenise(query), (hits.rows // 10).tolist())
        np.testing.assert_allclose(hits.scores, expected, rtol=1e-12)


@settings(max_examples=scaled(80))
@given(
    st.lists(st.lists(texts, max_size=6), min_size=1, max_size=4).filter(lambda given: any("".join(p) for p in given))
)
def test_idf_and_mean_of_any_shards_are_rank_bm25s_to_the_bit(shards):
    every = [tokenise(text) for part in shards for text in part]
    okapi, ends = BM25Okapi(every), np.cumsum(list(map(len, shards)))
    counted = [(TermCounts.build(part), np.arange(n - len(part), n)) for part, n in zip(shards, ends, strict=True)]
    statistics = Statistics.of(counted)
    assert dict(zip(statistics.terms, statistics.idf.tolist(), strict=True)) == okapi.idf
    assert statistics.mean_terms == okapi.avgdl


def test_paragraphs_without_terms_have_statistics():
    for paragraphs in ([], [""], ["", "the"]):
        statistics = Statistics.of([(TermCounts.build(paragraphs), np.arange(len(paragraphs)))])
        assert (list(statistics.terms), statistics.idf.tolist(), statistics.mean_terms) == ([], [], 1.0)


def test_ties_go_to_the_earlier_row_and_scores_do_not_depend_on_the_batch():
    paragraphs = ["carbon tax", "water", "carbon tax", "gpu", "kwh", "carbon tax", "energy", "42"]
    index = build(paragraphs)
    assert index.search(["tax"], 2)[0].rows.tolist() == [0, 20]
    queries = ["tax water", "gpu", "", "carbon water gpu 42"]
    whole = index.search(queries, 8)
    for query, hits in zip(queries, whole, strict=True):
        alone = index.search([query], 8)[0]
        assert alone.scores.tobytes() == hits.scores.tobytes()
        assert alone.rows.tolist() == hits.rows.tolist()


def test_a_long_text_is_read_in_parts_and_gives_the_same_terms(monkeypatch):
    text = " ".join(f"Rack {n} of hall-{n % 7} drew 3.5 kW, it's said (page {n})." for n in range(400))
    whole = tokenise(text)
    monkeypatch.setattr("kohaku_ray.index.terms._PART_CHARS", 90)
    assert tokenise(text) == whole
    assert len(tokenise("x" * 200)) == 3


@settings(max_examples=scaled(80))
@given(
    st.lists(texts, min_size=1, max_size=12).filter(lambda given: any(map(str.split, given))),
    st.sampled_from(["en", "fr"]),
    st.data(),
)
def test_similarities_are_rank_bm25_for_each_texts_distinct_terms(paragraphs, language, data):
    wanted = data.draw(st.lists(st.sampled_from(range(len(paragraphs))), max_size=12))
    okapi = BM25Okapi([tokenise(text, language) for text in paragraphs])
    distinct = [sorted(set(tokenise(paragraphs[number], language))) for number in wanted]
    expected = [okapi.get_scores(terms)[wanted] for terms in distinct]
    scores = similarities(build(paragraphs, language=language).weights_of(np.array(wanted, np.int64) * 10))
    np.testing.assert_allclose(scores, np.reshape(expected, (len(wanted), len(wanted))), atol=1e-9)


@pytest.mark.parametrize("row", [5, 1000])
def test_similarities_of_a_row_that_the_view_lacks(row):
    with pytest.raises(DataError, match=f"node row {row} is not in this view"):
        build(["energy", "carbon"]).weights_of(np.array([10, row]))


SIGNS = st.sampled_from(
    ["énergie", "A100", "cannot", "wanna", "gotta", "l'", "'s", "-", "--", "_", ".", ",", "%", " ", "\u00a0", "\n"]
)


@settings(max_examples=scaled(300))
@given(st.lists(SIGNS, max_size=8).map("".join) | st.text(max_size=12))
def test_words_are_nltks(text):
    assert _words(text) == nltk_module("nltk.tokenize.destructive").NLTKWordTokenizer().tokenize(text)


@check_rows(
    ("text", "terms"),
    [
        ("L'énergie", ["énerg"]),
        ("l’énergie des énergies", ["énerg", "énerg"]),
        ("D'abord, jusqu'à lorsqu'il n'est qu'une école d'ingénieurs.", ["abord", "écol", "ingénieur"]),
        ("aujourd'hui, les prud'hommes et la presqu'île", ["prud'homm", "presqu'îl"]),
        ("« Le maire viendra-t-il ? », dit-elle. Ces jours-là !", ["mair", "viendr", "dit", "jour"]),
        ("un rendez-vous", ["rendez-vous"]),
        ("La réunion, les réunions : 3,5 % en 2024", ["réunion", "réunion", "3,5", "2024"]),
        ("e\u0301nergie", ["énerg"]),
        ("C'est-à-dire", []),
    ],
)
def test_french_terms(text, terms):
    assert tokenise(text, "fr") == terms


def test_every_french_stop_word_is_stopped():
    """None keeps an elision or an inversion, or it could never be met."""
    assert {word for word in stop_words("fr") if tokenise(word, "fr")} == set()
    assert {"le", "qu", "est", "été", "aujourd'hui", "quelle"} <= stop_words("fr")


def test_english_keeps_elisions_and_inversions():
    assert tokenise("the energies of d'Artagnan, est-elle") == ["energies", "d'artagnan", "est-elle"]


def test_words_are_found_in_any_unicode_form():  # deja-vu#1098
    assert tokenise("Zu\u0308rna\u0308k’s ﬁeld Ａ１００") == tokenise("Zürnäk's field A100")
    assert tokenise("Große Straße") == tokenise("GROSSE STRASSE") == tokenise("große STRAẞE")
