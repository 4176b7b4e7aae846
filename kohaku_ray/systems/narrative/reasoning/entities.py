"""People and places in a text, by spaCy: a ruler of the book's names, and a trained pipeline when one is installed."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from kohaku_ray.errors import ConfigError
from kohaku_ray.systems.narrative.reasoning.capitals import name_words, read_capitals
from kohaku_ray.systems.narrative.reasoning.names import Cast, Person, build_cast
from kohaku_ray.systems.narrative.reasoning.places import build_gazetteer
from kohaku_ray.systems.narrative.reasoning.spelling import FUZZY_CHARS, unaccent

Kind = Literal["person", "place"]

TRAINED = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm")
"""Trained pipelines, the best first; none is needed."""

_KINDS: dict[str, Kind] = {"PERSON": "person", "GPE": "place", "LOC": "place", "FAC": "place"}
_CAPITALISED = re.compile(r"(?<![.!?“\"]\s)(?<!\A)\b[A-Z][\w'-]+(?:\s+(?:of\s+|de\s+|d')?[A-Z][\w'-]+)*")
_BEFORE_PLACE = re.compile(
    r"\b(?:in|at|into|near|from|through|(?:travell?ed|sailed|journeyed|returned|went|came|moved|fled|sent|shipped|brought|"
    r"emigrated|crossed|voyage|trip|back|way|route|left|out|off|embarked)\s+(?:to|for))\s+\Z"
)
_LONGEST_BEFORE = 30
_NO_NAME = re.compile(r"[^\w\s'.-]+|[.'-]{2,}")  # spaCy takes time quadratic in a run of punctuation


@dataclass(frozen=True, slots=True)
class Entity:
    """A person or a place as a span of a text.

    Attributes:
        start: First character.
        end: One past the last character, without a possessive ``'s``.
        kind: ``person`` or ``place``.
        name: The person's fullest name in the book, or the place, as the book writes it.
    """

    start: int
    end: int
    kind: Kind
    name: str


@dataclass(frozen=True)
class BookNames:
    """The names of a book: what is built once and asked for every story.

    Attributes:
        cast: Its people.
        places: Its places, longest first.
        model: A spaCy pipeline of the user's own, by name or path; None: the first of `TRAINED` that is installed.
    """

    cast: Cast
    places: tuple[str, ...]
    model: str | None = None
    _people: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    _resolved: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._people.update((unaccent(alias), person.name) for person in self.cast.people for alias in person.aliases)

    def entities(self, text: str, *, fuzzy: bool = False) -> tuple[Entity, ...]:
        """Find people and places.

        Args:
            text: Any; lines may be wrapped within a name.
            fuzzy: Also take capitalised words that are nearly a name of the book's (Kai-Kumu for Kai-Koumou).

        Returns:
            In reading order, without overlap; the longest name at each place.
        """
        plain = re.sub(r"\s", " ", unaccent(text))
        found = [
            Entity(span.start_char, _end(plain, span.start_char, span.end_char), kind, name)
            for span in self._pipeline(_NO_NAME.sub(_blank, plain)).ents
            for kind, name in (self._entity(span),)
            if kind is not None
        ]
        found += self._unknown(plain, found, fuzzy)
        return tuple(sorted(found, key=lambda entity: entity.start))

    def person(self, name: str) -> Person:
        """Find who a story is about; see `Cast.resolve`."""
        return self.cast.resolve(name)

    def _entity(self, span: Any) -> tuple[Kind | None, str]:
        kind = _KINDS.get(span.label_)
        return kind, span.ent_id_ or self._people.get(span.text, span.text)

    def _unknown(self, plain: str, found: Sequence[Entity], fuzzy: bool) -> Iterator[Entity]:
        """Yield places that the book's names lack, and people spelled nearly as the book has them."""
        starts, ends = [entity.start for entity in found], [entity.end for entity in found]
        for match in _CAPITALISED.finditer(plain):
            start, end = match.start(), _end(plain, *match.span())
            if bisect_right(ends, start) < bisect_left(starts, end) or not name_words(match[0]):
                continue
            name = self._nearly(match[0]) if fuzzy else None
            if name is not None:
                yield Entity(start, end, "person", name)
            elif _BEFORE_PLACE.search(plain[max(0, start - _LONGEST_BEFORE) : start]):
                yield Entity(start, end, "place", plain[start:end])

    def _nearly(self, text: str) -> str | None:
        """The person of the book whom a spelling comes near."""
        if text not in self._resolved:
            letters = sum(map(len, name_words(text)))
            person = self.cast.resolve(text) if letters >= FUZZY_CHARS else None
            known = (self._people.get(unaccent(alias)) for alias in person.aliases) if person else ()
            self._resolved[text] = next(filter(None, known), None)
        return self._resolved[text]

    @cached_property
    def _pipeline(self) -> Any:
        pipeline = _load(self.model)
        place = "ner" if "ner" in pipeline.pipe_names else None
        ruler = pipeline.add_pipe("entity_ruler", before=place)
        places = {unaccent(place): place for place in self.places}
        ruler.add_patterns(
            [
                {"label": label, "pattern": text, "id": name}
                for label, ids in (("PERSON", self._people), ("GPE", places))
                for text, name in sorted(ids.items())
                if label == "PERSON" or text not in self._people
            ]
        )
        return pipeline


def read_names(texts: Iterable[str], min_count: int = 3, model: str | None = None) -> BookNames:
    """Read the names of a book.

    Args:
        texts: Its paragraphs.
        min_count: Fewest mentions of a person; a place needs one less.
        model: See `BookNames`.
    """
    capitals = read_capitals(texts)
    return BookNames(build_cast(capitals, min_count), build_gazetteer(capitals, max(1, min_count - 1)), model)


def _load(model: str | None) -> Any:
    try:
        import spacy
    except ImportError:
        raise ConfigError(
            "The narrative system reads names with spaCy, which is not installed: pip install 'kohaku-ray[narrative]'."
        ) from None
    name = model or next((name for name in TRAINED if spacy.util.is_package(name)), None)
    if name is None:
        return spacy.blank("en")
    try:
        return spacy.load(name, exclude=["parser", "tagger", "lemmatizer", "attribute_ruler", "senter"])
    except OSError:
        raise ConfigError(
            f"narrative.model is {name!r}, which spaCy cannot load: give an installed pipeline, its path, or null."
        ) from None


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _end(plain: str, start: int, end: int) -> int:
    """The end of a name without its possessive."""
    return end - 2 if plain[start:end].endswith("'s") else end
