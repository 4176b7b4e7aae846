"""BM25 in shards: each counts its terms, all share the statistics, and the weights are computed when one is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kohaku_ray.index.arrays import F64, I64
from kohaku_ray.index.terms import Language, TermIndex, saturation, tokenise

EPSILON = 0.25
"""Share of the mean idf that terms in more than half of the paragraphs get (``BM25Okapi``)."""


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
    def of(cls, parts: Iterable[Postings]) -> Statistics:
        """Sum the counts of all shards: the idf of ``BM25Okapi``, its mean summed in the vocabulary's order."""
        frequency, n, total = Counter[str](), 0, 0
        for part in parts:
            frequency.update(dict(zip(part.terms, np.diff(part.offsets).tolist(), strict=True)))
            n, total = n + len(part.lengths), total + int(part.lengths.sum())
        terms = sorted(frequency)
        counts = np.array([frequency[term] for term in terms], np.float64)
        idf = np.log(n - counts + 0.5) - np.log(counts + 0.5)
        floor = EPSILON * float(idf.mean()) if len(idf) else 0.0
        return cls(terms, np.where(idf < 0, floor, idf), total / n if n and total else 1.0)


@dataclass(frozen=True)
class Postings:
    """A shard's term × paragraph matrix of counts.

    Attributes:
        terms: The shard's vocabulary, sorted.
        offsets: Shape ``(n_terms + 1,)``; where each term's run of postings starts and ends.
        places: Shape ``(n_postings,)``; paragraph of each posting, increasing within a term.
        counts: Shape ``(n_postings,)``; occurrences of the term in it.
        rows: Shape ``(n_paragraphs,)``; node-table row of each paragraph.
        lengths: Shape ``(n_paragraphs,)``; terms of each.
    """

    terms: Sequence[str]
    offsets: I64
    places: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    rows: I64
    lengths: I64

    @classmethod
    def build(cls, texts: Iterable[str], rows: I64, language: Language = "en") -> Postings:
        """Count every term of every paragraph; arguments as of ``TermIndex.build``."""
        number: dict[str, int] = {}
        term, place, count, lengths = [], [], [], []
        for at, text in enumerate(texts):
            found = Counter(tokenise(text, language))
            lengths.append(found.total())
            for word, n in found.items():
                term.append(number.setdefault(word, len(number)))
                place.append(at)
                count.append(n)
        terms = sorted(number)
        rank = np.empty(len(terms), np.int64)
        rank[[number[word] for word in terms]] = np.arange(len(terms))
        ranks = rank[term] if term else np.empty(0, np.int64)
        order = np.argsort(ranks, kind="stable")
        offsets = np.r_[0, np.cumsum(np.bincount(ranks, minlength=len(terms)))].astype(np.int64)
        places, counts = np.array(place, np.int32)[order], np.array(count, np.int32)[order]
        return cls(terms, offsets, places, counts, rows, np.array(lengths, np.int64))

    def weighted(self, of_all: Statistics, k1: float, b: float, language: Language) -> TermIndex:
        """Weigh the counts by the statistics of all shards.

        Args:
            of_all: The statistics.
            k1: Term-frequency saturation.
            b: Length normalisation.
            language: Language of queries.
        """
        place = {term: at for at, term in enumerate(of_all.terms)}
        numbers = np.array([place[term] for term in self.terms], np.int64)
        idf = np.repeat(of_all.idf[numbers] if len(numbers) else np.empty(0), np.diff(self.offsets))
        relative_length = self.lengths[self.places] / of_all.mean_terms
        weights = idf * saturation(self.counts.astype(np.float64), relative_length, k1, b)
        return TermIndex(self.terms, self.offsets, self.places, weights, self.rows, language, numbers)
