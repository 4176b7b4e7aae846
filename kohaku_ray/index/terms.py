"""BM25 over paragraphs: the scores of ``rank_bm25.BM25Okapi``, for a whole batch of queries at once."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kohaku_ray.documents.lean_imports import nltk_module
from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F64, I64
from kohaku_ray.index.hits import Hits
from kohaku_ray.index.vectors import Ranges, check_top_k, in_ranges, ranked

_EDGES = "'\"`‘’“”."
"""Stripped from both ends of a token: the tokenizer cuts a full stop only at the very end of a text."""


Language = Literal["en", "fr"]
"""Language of a text, which decides how it is split into terms."""

_STOP_WORD_FILES: Mapping[Language, str] = {"en": "stopwords.txt", "fr": "stopwords_fr.txt"}

_PART_CHARS = 100_000

_WORDS_ALONE = re.compile(r"[^\W_]+(?:[\s-][^\W_]+)*\s*")
_SPLIT_BY_NLTK = re.compile(r"\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b", re.IGNORECASE)
"""Words in which NLTK's tokenizer sees two, where no sign tells."""

_ELISION = re.compile(r"(?<!\w)(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)'(?=\w)")
_INVERSION = re.compile(r"-(?:t-)?(?:ce|ci|elles?|ils?|je|là|on|tu)\Z")


def tokenise(text: str, language: Language = "en") -> list[str]:
    """Split a text into search terms: NLTK word tokens, lower-cased, without stop words and bare punctuation.

    French also loses its elisions ("l'énergie" → "énergie") and the pronouns of inversions ("dit-il" → "dit"), and its
    words are stemmed by NLTK's Snowball stemmer.
    """
    lowered = text.lower()
    if language == "fr":
        lowered = _ELISION.sub("", unicodedata.normalize("NFC", lowered).replace("’", "'"))
    words = [word.strip(_EDGES) for part in _parts(lowered) for word in _words(part)]
    if language == "fr":
        words = [_INVERSION.sub("", word) for word in words]
    kept = [word for word in words if word not in stop_words(language) and any(map(str.isalnum, word))]
    return kept if language == "en" else list(map(_french_stem, kept))


@functools.lru_cache(maxsize=2**14)
def _query_terms(query: str, language: Language) -> tuple[str, ...]:
    """Terms of a query; cached, since one query is put to several views."""
    return tuple(tokenise(query, language))


def _words(text: str) -> list[str]:
    """NLTK's word tokens; of words alone, such as most queries, they are what white space separates."""
    if _WORDS_ALONE.fullmatch(text) and not _SPLIT_BY_NLTK.search(text):
        return text.split()
    tokens: list[str] = _word_tokenizer().tokenize(text)
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
    return str(_french_stemmer().stem(word))


@functools.cache
def _french_stemmer() -> Any:
    return nltk_module("nltk.stem.snowball").FrenchStemmer()


@functools.cache
def _word_tokenizer() -> Any:
    return nltk_module("nltk.tokenize.destructive").NLTKWordTokenizer()


class TermIndex:
    """A sparse term × paragraph matrix of finished BM25 weights.

    Attributes:
        terms: The vocabulary, sorted.
        offsets: Shape ``(n_terms + 1,)``; where each term's run of postings starts and ends.
        places: Shape ``(n_postings,)``; int32 paragraph of each posting, increasing within a term.
        weights: Shape ``(n_postings,)``; what one occurrence of the term in a query adds to the paragraph's score.
        rows: Shape ``(n_paragraphs,)``; node-table row of each paragraph.
        language: Language of queries and paragraphs.
        numbers: Shape ``(n_terms,)``; number of each term in the vocabulary of all shards.
    """

    def __init__(
        self,
        terms: Sequence[str],
        offsets: I64,
        places: npt.NDArray[np.int32],
        weights: F64,
        rows: I64,
        language: Language = "en",
        numbers: I64 | None = None,
    ) -> None:
        """Combine the parts, made by ``build`` or read from a directory; ``numbers``: None without shards."""
        if len(offsets) != len(terms) + 1 or not len(places) == len(weights) == int(offsets[-1]):
            raise DataError(f"{len(terms)} terms and {len(places)} postings do not belong together: re-index")
        self.terms, self.offsets, self.places, self.weights, self.rows = terms, offsets, places, weights, rows
        self.language: Language = language
        self.numbers = np.arange(len(terms)) if numbers is None else numbers
        self._number: Mapping[str, int] = {term: at for at, term in enumerate(terms)}

    @classmethod
    def build(
        cls, texts: Iterable[str], rows: I64, k1: float = 1.5, b: float = 0.75, language: Language = "en"
    ) -> TermIndex:
        """Weigh every term of every paragraph by the statistics of ``BM25Okapi``.

        Args:
            texts: The paragraphs.
            rows: Shape ``(n,)``; node-table row of each.
            k1: Term-frequency saturation.
            b: Length normalisation.
            language: See ``tokenise``.
        """
        from rank_bm25 import BM25Okapi

        corpus = [tokenise(text, language) for text in texts]
        if not any(corpus):  # BM25Okapi divides by the mean length
            return cls([], np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float64), rows, language)
        okapi = BM25Okapi(corpus, k1=k1, b=b)
        terms = sorted(okapi.idf)
        number = {term: at for at, term in enumerate(terms)}
        lengths = np.fromiter(map(len, okapi.doc_freqs), np.int64, len(corpus))
        n = int(lengths.sum())
        places = np.repeat(np.arange(len(corpus), dtype=np.int32), lengths)
        term = np.fromiter((number[word] for freqs in okapi.doc_freqs for word in freqs), np.int64, n)
        frequency = np.fromiter((count for freqs in okapi.doc_freqs for count in freqs.values()), np.float64, n)
        idf = np.array([okapi.idf[word] for word in terms])
        relative_length = np.array(okapi.doc_len)[places] / okapi.avgdl
        weights = idf[term] * saturation(frequency, relative_length, k1, b)
        order = np.argsort(term, kind="stable")
        offsets = np.r_[0, np.cumsum(np.bincount(term, minlength=len(terms)))].astype(np.int64)
        return cls(terms, offsets, places[order], weights[order], rows, language)

    def search(self, queries: Sequence[str], top_k: int, within: Ranges | None = None) -> list[Hits]:
        """Find each query's best paragraphs; those with score 0 are left out, ties go to the earlier row.

        Args:
            queries: As people type them.
            top_k: Most hits per query.
            within: Ranges of node rows to search; the statistics stay those of the whole index. None: all.

        Raises:
            ConfigError: ``top_k`` is below 1.
        """
        check_top_k(top_k)
        scores = self._scores(queries)
        found = []
        for first, last in zip(scores.indptr[:-1], scores.indptr[1:], strict=True):
            values = scores.data[first:last]
            rows = self.rows[scores.indices[first:last]]
            hit = values != 0 if within is None else (values != 0) & in_ranges(rows, within)
            found.append(ranked(*_candidates(rows[hit], values[hit], top_k)).prefix(top_k))
        return found

    def scores(self, query: str) -> F64:
        """Score every paragraph: shape ``(n_paragraphs,)``, as ``BM25Okapi.get_scores`` of the query's terms."""
        dense: F64 = self._scores([query]).toarray()[0]
        return dense

    def weights_of(self, rows: I64) -> list[tuple[I64, F64]]:
        """Return paragraphs' terms and their weights, for ``similarities``.

        Args:
            rows: Shape ``(n,)``; node-table rows of paragraphs.

        Returns:
            Per paragraph: numbers of its terms, increasing, and their weights.

        Raises:
            DataError: A row is none of the paragraphs.
        """
        places = np.searchsorted(self.rows, rows)
        known = places < len(self.rows)
        known[known] = self.rows[places[known]] == rows[known]
        if not known.all():
            raise DataError(f"node row {rows[~known][0]} is not in this view: ask for the rows of nodes that it holds")
        held = self._by_paragraph[places]
        runs = [slice(first, last) for first, last in pairwise(held.indptr)]
        return [(self.numbers[held.indices[run]], held.data[run]) for run in runs]

    def _scores(self, queries: Sequence[str]) -> Any:
        """Multiply the queries' term counts with the weights: a sparse (queries, paragraphs) matrix."""
        from scipy.sparse import csr_matrix

        counts = [
            Counter(self._number[word] for word in _query_terms(query, self.language) if word in self._number)
            for query in queries
        ]
        ends = np.cumsum([0, *map(len, counts)])
        columns = np.array([term for count in counts for term in sorted(count)], dtype=np.int64)
        values = np.array([count[term] for count in counts for term in sorted(count)], dtype=np.float64)
        wanted = csr_matrix((values, columns, ends), shape=(len(queries), len(self.terms)))
        return wanted @ self._weights

    @functools.cached_property
    def _weights(self) -> Any:
        from scipy.sparse import csr_matrix

        return csr_matrix((self.weights, self.places, self.offsets), shape=(len(self.terms), len(self.rows)))

    @functools.cached_property
    def _by_paragraph(self) -> Any:
        """The same weights by paragraph: as large as those by term, built when first asked for."""
        return self._weights.T.tocsr()


def similarities(paragraphs: Sequence[tuple[I64, F64]]) -> F64:
    """Score paragraphs for one another: BM25 of paragraph j for the distinct terms of paragraph i as the query.

    No text is split into terms: the weights are the index's own, with the statistics of all its paragraphs. A term
    that the query repeats counts once.

    Args:
        paragraphs: Terms and weights of each (``TermIndex.weights_of``), of any shards of one index.

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


def _candidates(rows: I64, scores: F64, top_k: int) -> tuple[I64, F64]:
    """Drop what cannot be among the best ``top_k``: sorting the rest takes a fraction of the time."""
    if len(rows) <= top_k:
        return rows, scores
    good = scores >= np.partition(scores, -top_k)[-top_k]
    return rows[good], scores[good]


def saturation(frequency: F64, relative_length: F64, k1: float, b: float) -> F64:
    """Weigh term frequency by paragraph length (BM25, Robertson et al. 1994, as in ``BM25Okapi``)."""
    return frequency * (k1 + 1) / (frequency + k1 * (1 - b + b * relative_length))
