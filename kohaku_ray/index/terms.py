"""BM25 over paragraphs: ``rank_bm25.BM25Okapi``, and the same scores for a whole batch of queries at once.

Each shard counts its terms, all share BM25Okapi's statistics, and the weights are computed when a shard is opened. A
search that is held to a few documents is scored by BM25Okapi itself.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rank_bm25 import BM25Okapi

from kohaku_ray.documents.lean_imports import nltk_module
from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F64, I64, Hits
from kohaku_ray.index.settings import Language
from kohaku_ray.index.vectors import Ranges, in_ranges, ranked
from kohaku_ray.values.spelling import one_form

MOST_HELD = 128
"""Most paragraphs that a search within documents scores one by one, in 0.5 ms per query; the product with all takes 0.6
of 30,000 and 2 of 100,000 paragraphs."""

TERMS = 2
"""Version of ``tokenise``, part of an index's fingerprint: one whose terms were cut otherwise is built anew."""

_EDGES = "'\"`‘’“”."
"""Stripped from both ends of a token: the tokenizer cuts a full stop only at the very end of a text."""


_POSTING = ("place", "count")

_STOP_WORD_FILES: Mapping[Language, str] = {"en": "stopwords.txt", "fr": "stopwords_fr.txt"}

_PART_CHARS = 100_000

_WORDS_ALONE = re.compile(r"[^\W_]+(?:[\s-][^\W_]+)*\s*")
_SPLIT_BY_NLTK = re.compile(r"\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b", re.IGNORECASE)
"""Words in which NLTK's tokenizer sees two, where no sign tells."""

_ELISION = re.compile(r"(?<!\w)(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)'(?=\w)")
_INVERSION = re.compile(r"-(?:t-)?(?:ce|ci|elles?|ils?|je|là|on|tu)\Z")


def tokenise(text: str, language: Language = "en") -> list[str]:
    """Split a text into search terms: NLTK word tokens, case-folded, without stop words and bare punctuation.

    Texts are compared in one Unicode form (``one_form``) and without case: an accent that is a character of its own, a
    ligature, a typographic apostrophe and a hyphen that breaks no line are found by the usual ones, Straße by STRASSE.

    French also loses its elisions ("l'énergie" → "énergie") and the pronouns of inversions ("dit-il" → "dit"), and its
    words are stemmed by NLTK's Snowball stemmer.
    """
    lowered = one_form(text).casefold()
    if language == "fr":
        lowered = _ELISION.sub("", lowered)
    words = [word.strip(_EDGES) for part in _parts(lowered) for word in _words(part)]
    if language == "fr":
        words = [_INVERSION.sub("", word) for word in words]
    kept = [word for word in words if word not in stop_words(language) and any(map(str.isalnum, word))]
    return kept if language == "en" else list(map(_french_stem, kept))


_query_terms = functools.lru_cache(maxsize=2**14)(tokenise)  # one query is put to several views


def _words(text: str) -> list[str]:
    """NLTK's word tokens; of words alone, such as most queries, they are what white space separates."""
    if _WORDS_ALONE.fullmatch(text) and not _SPLIT_BY_NLTK.search(text):
        return text.split()
    tokens: list[str] = _nltk_object("nltk.tokenize.destructive", "NLTKWordTokenizer").tokenize(text)
    return tokens


def _parts(text: str) -> Iterator[str]:
    """Cut a long text between words: NLTK gives up on one regular expression after five seconds."""
    start = 0
    while len(text) - start > _PART_CHARS:
        end = text.rfind(" ", start, start + _PART_CHARS)
        end = start + _PART_CHARS if end <= start else end
        yield text[start:end]
        start = end
    yield text[start:]


@functools.cache
def stop_words(language: Language = "en") -> frozenset[str]:
    """Words without information about a text's subject."""
    name = _STOP_WORD_FILES[language]
    return frozenset(resources.files(__package__).joinpath(name).read_text(encoding="utf-8").split())


@functools.lru_cache(maxsize=2**18)
def _french_stem(word: str) -> str:
    """The stem of a word; cached, since stemming takes twice as long as splitting."""
    return str(_nltk_object("nltk.stem.snowball", "FrenchStemmer").stem(word))


@functools.cache
def _nltk_object(module: str, name: str) -> Any:
    return getattr(nltk_module(module), name)()


K1, B = 1.5, 0.75
"""Saturation of a term's frequency and normalisation by length, as ``BM25Okapi`` has them."""


class _Okapi(BM25Okapi):  # type: ignore[misc]  # the package has no types
    """``BM25Okapi`` of paragraphs whose terms are counted already: its own constructor counts those of texts."""

    def __init__(self, n: int, k1: float = K1, b: float = B) -> None:
        self.corpus_size, self.k1, self.b, self.epsilon, self.idf = n, k1, b, 0.25, dict[Any, float]()


@dataclass(frozen=True)
class Statistics:
    """What BM25 knows of all paragraphs.

    Attributes:
        terms: The vocabulary, sorted.
        idf: Shape ``(n_terms,)``; inverse paragraph frequency of each.
        mean_terms: Mean number of terms per paragraph.
    """

    terms: Sequence[str]
    idf: F64
    mean_terms: float

    @classmethod
    def of(cls, parts: Sequence[tuple[TermCounts, I64]]) -> Statistics:
        """Sum the counts of shards, each with its rows in the whole index, to the idf of ``BM25Okapi``."""
        frequency, n, total = Counter[str](), 0, 0
        met: dict[str, tuple[int, int]] = {}
        for part, rows in parts:
            frequency.update(dict(zip(part.terms, np.diff(part.offsets).tolist(), strict=True)))
            n, total = n + len(part.lengths), total + int(part.lengths.sum())
            firsts = zip(rows[part.first].tolist(), part.rank.tolist(), strict=True)
            for term, first in zip(part.terms, firsts, strict=True):
                met[term] = min(met.get(term, first), first)
        okapi = _Okapi(n)
        if frequency:  # in the order in which it meets the terms itself, so that the mean is the same to the last bit
            okapi._calc_idf({term: frequency[term] for term in sorted(met, key=met.__getitem__)})
        terms = sorted(frequency)
        return cls(terms, np.array([okapi.idf[term] for term in terms]), total / n if n and total else 1.0)


@dataclass(frozen=True)
class TermCounts:
    """A shard's term × paragraph matrix of counts.

    Attributes:
        terms: The shard's vocabulary, sorted.
        offsets: Shape ``(n_terms + 1,)``; where each term's run of postings starts and ends.
        paragraphs: Shape ``(n_postings,)``; paragraph of each posting, increasing within a term.
        counts: Shape ``(n_postings,)``; occurrences of the term in it.
        lengths: Shape ``(n_paragraphs,)``; terms of each.
        first: Shape ``(n_terms,)``; the first paragraph with each term.
        rank: Shape ``(n_terms,)``; place of each term among all in the order in which they first occur.
    """

    terms: Sequence[str]
    offsets: I64
    paragraphs: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    lengths: I64
    first: I64
    rank: I64

    @classmethod
    def build(cls, texts: Iterable[str], language: Language = "en") -> TermCounts:
        """Count every term of every paragraph."""
        number: dict[str, int] = {}
        term, paragraph, count, lengths = [], [], [], []
        for paragraph_number, text in enumerate(texts):
            counts_of_text = Counter(tokenise(text, language))
            lengths.append(counts_of_text.total())
            for word, n in counts_of_text.items():
                term.append(number.setdefault(word, len(number)))
                paragraph.append(paragraph_number)
                count.append(n)
        terms = sorted(number)
        rank = np.array([number[word] for word in terms], np.int64)
        sorted_place = np.argsort(rank)[np.array(term, np.int64)]  # of each posting's term in the sorted vocabulary
        order = np.argsort(sorted_place, kind="stable")
        offsets = np.r_[0, np.cumsum(np.bincount(sorted_place, minlength=len(terms)))].astype(np.int64)
        paragraphs, counts = np.array(paragraph, np.int32)[order], np.array(count, np.int32)[order]
        return cls(terms, offsets, paragraphs, counts, np.array(lengths, np.int64), paragraphs[offsets[:-1]], rank)

    @classmethod
    def of(cls, terms: pa.Table, rows: pa.Table, postings: pa.Table | None = None) -> TermCounts:
        """Read them from the tables that ``tables`` made; without ``postings``, all but the counts themselves."""
        paragraphs, counts = (
            np.empty(0, np.int32) if postings is None else postings[name].to_numpy() for name in _POSTING
        )
        end, first, rank = (terms[name].to_numpy() for name in ("end", "first", "rank"))
        offsets = np.r_[np.int64(0), end]
        return cls(terms["term"].to_pylist(), offsets, paragraphs, counts, rows["n_terms"].to_numpy(), first, rank)

    def tables(self, rows: I64) -> dict[str, pa.Table]:
        """Write them as an index holds them: its terms, postings and rows; arguments as of ``weighted``."""
        terms = {"term": pa.array(self.terms, pa.string()), "end": self.offsets[1:]}
        return {
            "terms": pa.table({**terms, "first": self.first, "rank": self.rank}),
            "postings": pa.table(dict(zip(_POSTING, (self.paragraphs, self.counts), strict=True))),
            "rows": pa.table({"row": rows, "n_terms": self.lengths}),
        }

    def weighted(self, of_all: Statistics, rows: I64, k1: float, b: float, language: Language = "en") -> TermIndex:
        """Weigh the counts by the statistics of all shards, with saturation ``k1`` and length normalisation ``b``.

        ``rows`` are the node-table rows of the paragraphs; ``language`` is that of queries.
        """
        number_of = {term: number for number, term in enumerate(of_all.terms)}
        numbers = np.array([number_of[term] for term in self.terms], np.int64)
        # Term frequency, weighed by paragraph length (BM25, Robertson et al. 1994, as in BM25Okapi), times idf.
        damping = k1 * (1 - b + b * (self.lengths / of_all.mean_terms))
        frequency = self.counts.astype(np.float64)
        weights = frequency * (k1 + 1) / (frequency + damping[self.paragraphs])
        weights *= np.repeat(of_all.idf[numbers], np.diff(self.offsets))
        weighted = (self.terms, self.offsets, self.paragraphs, weights, rows, language, numbers)
        return TermIndex(*weighted, counted=self, of_all=of_all, k1=k1, b=b)


@dataclass(frozen=True)
class TermIndex:
    """A sparse term × paragraph matrix of finished BM25 weights.

    Attributes:
        terms, offsets, paragraphs: As of ``TermCounts``.
        weights: Shape ``(n_postings,)``; what one occurrence of the term in a query adds to the paragraph's score.
        rows: Shape ``(n_paragraphs,)``; node-table row of each paragraph.
        language: Language of queries and paragraphs.
        numbers: Shape ``(n_terms,)``; number of each term in the vocabulary of all shards.
        counted: What the weights were made from.
        of_all: Statistics of all shards.
        k1, b: Saturation and length normalisation.
    """

    terms: Sequence[str]
    offsets: I64
    paragraphs: npt.NDArray[np.int32]
    weights: F64
    rows: I64
    language: Language
    numbers: I64
    counted: TermCounts
    of_all: Statistics
    k1: float
    b: float

    def search(self, queries: Sequence[str], top_k: int, within: Ranges | None = None) -> list[Hits]:
        """Find each query's best paragraphs; those with score 0 are left out, ties go to the earlier row.

        With ``within``, only those ranges of node rows are searched; the statistics stay those of the whole index.
        """
        if within is not None:
            held = np.flatnonzero(in_ranges(self.rows, within))
            if len(held) <= MOST_HELD:
                scored = (self._held_scores(query, held) for query in queries)
                return [ranked(self.rows[held[some != 0]], some[some != 0]).prefix(top_k) for some in scored]
        scores = self.scores(queries)
        hits = []
        for first, last in zip(scores.indptr[:-1], scores.indptr[1:], strict=True):
            values = scores.data[first:last]
            rows = self.rows[scores.indices[first:last]]
            is_hit = values != 0 if within is None else (values != 0) & in_ranges(rows, within)
            if is_hit.sum() > top_k:  # without what cannot be among the best: sorting the rest takes a fraction
                is_hit &= values >= np.partition(values[is_hit], -top_k)[-top_k]
            hits.append(ranked(rows[is_hit], values[is_hit]).prefix(top_k))
        return hits

    def weights_of(self, rows: I64) -> list[tuple[I64, F64]]:
        """Return the terms of paragraphs, given by their node rows of shape ``(n,)``, for ``similarities``.

        Returns:
            Per paragraph: numbers of its terms, increasing, and their weights.

        Raises:
            DataError: A row is none of the paragraphs.
        """
        positions = np.searchsorted(self.rows, rows)
        known = positions < len(self.rows)
        known[known] = self.rows[positions[known]] == rows[known]
        if not known.all():
            raise DataError(f"node row {rows[~known][0]} is not in this view: ask for the rows of nodes that it holds")
        held = self._by_paragraph[positions]
        runs = [slice(first, last) for first, last in pairwise(held.indptr)]
        return [(self.numbers[held.indices[run]], held.data[run]) for run in runs]

    def _held_scores(self, query: str, held: I64) -> F64:
        """Score these paragraphs by ``BM25Okapi.get_scores``: to the bit those of ``scores``."""
        okapi, scores = _Okapi(len(held), self.k1, self.b), np.zeros(len(held))
        # Relative to the mean, as the weights have it: two roundings in another order would differ in the last bit.
        okapi.doc_len, okapi.avgdl = self.counted.lengths[held] / self.of_all.mean_terms, 1.0
        for term, n in sorted(self._count_terms(query).items()):
            run = slice(self.offsets[term], self.offsets[term + 1])
            paragraphs, counts = self.paragraphs[run], self.counted.counts[run]
            near = np.minimum(np.searchsorted(paragraphs, held), len(paragraphs) - 1)
            okapi.doc_freqs = [
                {term: n_held} for n_held in np.where(paragraphs[near] == held, counts[near], 0).tolist()
            ]
            okapi.idf = {term: self.of_all.idf[self.numbers[term]]}
            scores += n * okapi.get_scores([term])
        return scores

    def _count_terms(self, query: str) -> Mapping[int, int]:
        """Count a query's terms, by their numbers here."""
        return Counter(self._number[word] for word in _query_terms(query, self.language) if word in self._number)

    def scores(self, queries: Sequence[str]) -> Any:
        """Score every paragraph as ``BM25Okapi.get_scores`` does: a sparse (queries, paragraphs) matrix."""
        from scipy.sparse import csr_matrix

        counts = list(map(self._count_terms, queries))
        ends = np.cumsum([0, *map(len, counts)])
        columns = np.array([term for count in counts for term in sorted(count)], dtype=np.int64)
        values = np.array([count[term] for count in counts for term in sorted(count)], dtype=np.float64)
        wanted = csr_matrix((values, columns, ends), shape=(len(queries), len(self.terms)))
        return wanted @ self._weights

    @functools.cached_property
    def _number(self) -> Mapping[str, int]:
        return {term: number for number, term in enumerate(self.terms)}

    @functools.cached_property
    def _weights(self) -> Any:
        from scipy.sparse import csr_matrix

        return csr_matrix((self.weights, self.paragraphs, self.offsets), shape=(len(self.terms), len(self.rows)))

    @functools.cached_property
    def _by_paragraph(self) -> Any:
        """The same weights by paragraph: as large as those by term, built when first asked for."""
        return self._weights.T.tocsr()


def similarities(paragraphs: Sequence[tuple[I64, F64]]) -> F64:
    """Score paragraphs for one another: BM25 of paragraph j for the distinct terms of paragraph i as the query.

    No text is split into terms: the weights are those of ``TermIndex.weights_of``, of any shards of one index. A term
    that the query repeats counts once.

    Returns:
        Shape ``(n, n)``; row i is paragraph i as the query.
    """
    from scipy.sparse import csr_matrix

    if not paragraphs:
        return np.empty((0, 0))
    terms, column = np.unique(np.concatenate([numbers for numbers, _ in paragraphs]), return_inverse=True)
    weights, ends = np.concatenate([each for _, each in paragraphs]), np.cumsum([0, *(len(n) for n, _ in paragraphs)])
    shape = (len(paragraphs), len(terms))
    asked = csr_matrix((np.ones_like(weights), column, ends), shape)
    scores: F64 = (asked @ csr_matrix((weights, column, ends), shape).T).toarray()
    return scores
