"""The narrative rules: precision and recall over hand-made fixtures, firings on labelled stories, seconds.

    python benchmarks/narrative_rules.py [--data ../shared/data/kdsh] [--k 15]

The stories' labels are read to report alone: no rule, word or threshold was chosen by them. Each story's excerpts are
the k best chunks of its own book by BM25 over character and content. A rule's precision is the share of its firings on
stories that are labelled contradict, beside the share of such stories among all.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kohaku_ray.documents.model import Document
from kohaku_ray.documents.novel import parse_novel
from kohaku_ray.index.terms import TermIndex
from kohaku_ray.systems.narrative.reasoning.entities import BookNames, read_names
from kohaku_ray.systems.narrative.reasoning.events import find_events
from kohaku_ray.systems.narrative.reasoning.findings import RULES, Excerpt, Finding, find_contradictions
from kohaku_ray.systems.narrative.reasoning.fixtures import measure, read_fixtures, table
from kohaku_ray.systems.narrative.reasoning.spelling import match_book
from kohaku_ray.systems.narrative.reasoning.years import year_anchors

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "systems" / "narrative" / "fixtures.yaml"
CHUNK_CHARS = 1600


@dataclass(frozen=True, slots=True)
class Book:
    """What is made once of a novel."""

    chunks: list[Excerpt]
    terms: TermIndex
    names: BookNames

    def excerpts(self, query: str, k: int) -> list[Excerpt]:
        """The best chunks for a query."""
        (hits,) = self.terms.search([query], k)
        return [self.chunks[row] for row in hits.rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "kdsh")
    parser.add_argument("--k", type=int, default=15)
    given = parser.parse_args()
    fixtures = read_fixtures(FIXTURES)
    print(f"{len(fixtures)} fixtures\n{table(measure(fixtures))}")
    if not given.data.is_dir():
        print(f"no labelled stories at {given.data}: give --data")
        return
    report(given.data, given.k)


def report(data: Path, k: int) -> None:
    """Run every rule over the labelled stories and print what fires."""
    books = {path.stem: read_book(path) for path in sorted((data / "books").glob("*.txt"))}
    with (data / "train.csv").open(encoding="utf-8", newline="") as file:
        stories = list(csv.DictReader(file))
    fired: dict[str, list[tuple[dict[str, str], Finding]]] = defaultdict(list)
    seconds, unknown, n_claims, n_facts = [], [], [], []
    for story in stories:
        doc_id = match_book(story["book_name"], books)
        if doc_id is None:
            raise SystemExit(f"{story['book_name']!r} is none of {', '.join(books)}")
        book = books[doc_id]
        excerpts = book.excerpts(f"{story['char']} {story['content']}", k)
        start = time.perf_counter()
        found = find_contradictions(story["content"], story["char"], excerpts, book.names, RULES)
        seconds.append(time.perf_counter() - start)
        person = book.names.person(story["char"])
        if not person.n_mentions:
            unknown.append(story["char"])
        n_claims.append(len(find_events(story["content"], book.names, person, story=True)))
        facts = [fact for each in excerpts for fact in find_events(each.text, book.names, person, each.anchor)]
        n_facts.append(sum(fact.person.startswith(person.name) for fact in facts))
        for finding in found:
            fired[finding.rule].append((story, finding))
    contradict = sum(story["label"] == "contradict" for story in stories)
    print(f"\n{len(stories)} stories, {contradict} of them contradict ({contradict / len(stories):.2f}); k = {k}")
    print(f"characters that the book's cast lacks: {sorted(set(unknown)) or 'none'}")
    claimed, told = sum(map(bool, n_claims)), sum(map(bool, n_facts))
    print(f"stories with an event: {claimed}; with one of the character in their excerpts: {told}")
    print(f"a story: median {1e3 * np.median(seconds):.0f} ms, slowest {1e3 * max(seconds):.0f} ms")
    for rule in sorted(RULES):
        labels = [story["label"] == "contradict" for story, _ in fired[rule]]
        stories_hit = {story["id"] for story, _ in fired[rule]}
        precision = f"{sum(labels) / len(labels):.2f}" if labels else "-"
        print(f"{rule:<26} {len(labels):>3} firings on {len(stories_hit):>2} stories: precision {precision}")
    for rule, findings in sorted(fired.items()):
        for story, finding in findings:
            print(f"  {rule} {story['id']} {story['char']} [{story['label']}]: {finding.reason} ({finding.chapter})")


def read_book(path: Path) -> Book:
    """Parse a novel, cut it into chunks of whole paragraphs, and read its names; prints seconds."""
    start = time.perf_counter()
    document = parse_novel(path.name, path.read_bytes())
    parsed = time.perf_counter()
    texts = [part.text for section in document.sections for part in section.paragraphs]
    names = read_names(texts)
    names.entities(texts[0])
    named = time.perf_counter()
    print(f"{path.stem}: parsed in {parsed - start:.1f} s, names and places in {named - parsed:.1f} s")
    chunks = chunks_of(document)
    terms = TermIndex.build([chunk.text for chunk in chunks], np.arange(len(chunks), dtype=np.int64))
    return Book(chunks, terms, names)


def chunks_of(document: Document) -> list[Excerpt]:
    """Whole paragraphs of one chapter, about `CHUNK_CHARS` long."""
    placed = [(section.title, part.text) for section in document.sections for part in section.paragraphs]
    chunks: list[Excerpt] = []
    for (chapter, text), anchor in zip(placed, year_anchors(placed), strict=True):
        last = chunks[-1] if chunks else None
        if last is not None and last.chapter == chapter and len(last.text) + len(text) < CHUNK_CHARS:
            chunks[-1] = Excerpt(last.node_id, chapter, f"{last.text}\n\n{text}", last.anchor)
        else:
            chunks.append(Excerpt(f"{document.doc_id}:c{len(chunks)}", chapter, text, anchor))
    return chunks


if __name__ == "__main__":
    main()
