"""Where something happens: places of a sentence, by regular expressions or by a spaCy pipeline, and which are apart."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from kohaku_ray.systems.narrative.names import CAPITALISED_RUN, BookNames, name_words, unaccent, word_set, words_of

_PREPOSITION = re.compile(
    r"\b(?:in|at|into|to|for|near|on|upon|reached|visited|through|across|towards?)\s+(?:the\s+|this\s+|that\s+)?"
    r"(?:(?:fortress|prison|castle|city|town|village|port|island|isle|coast|dungeons?|province|slums)\s+of\s+(?:the\s+)?)?\Z"
)
_AWAY = re.compile(r"\b(?:from|left|of)\s+(?:the\s+)?\Z")
_CONTINENTS = word_set("europe asia africa america oceania indies orient")
_COUNTRIES = word_set(
    """france italy spain england scotland ireland britain portugal germany prussia austria russia poland turkey
    greece egypt algeria morocco india china japan persia arabia syria australia zealand tasmania chili chile argentina
    patagonia brazil peru mexico canada corsica sardinia sicily tuscany provence normandy brittany catalonia
    switzerland holland belgium sweden norway denmark hungary albania"""
)
_TELL_NOTHING = word_set(
    """island isle cape mount fort port lake river gulf bay strait straits sea rue place chateau city coast ocean
    street north south northern southern eastern western new great house castle town village prison fortress de d la le
    of the"""
)


def find_place(sentence: str, start: int, end: int, names: BookNames, pipeline: str | None = None) -> str | None:
    """Find the first place of a clause that it does not lead away from.

    Args:
        sentence: Whole: a pipeline reads a clause by what stands around it.
        start: Where the clause goes on behind its verb.
        end: Where the clause ends.
        names: The book's: whom it names more often than it stands there is no place.
        pipeline: A spaCy pipeline whose entities count instead of the regular expressions.
    """
    plain = unaccent(sentence)
    if pipeline is None:
        spans = [match.span() for match in CAPITALISED_RUN.finditer(plain, start, end)]
        spans = [span for span in spans if names.is_place(plain[slice(*span)])]
    else:
        entities = load_pipeline(pipeline)(sentence).ents
        spans = [(one.start_char, one.end_char) for one in entities if one.label_ in ("GPE", "LOC", "FAC")]
    for first, last in spans:
        before = plain[:first]
        is_named = _PREPOSITION.search(before) if pipeline is None else not _AWAY.search(before)
        if start <= first and last <= end and is_named and name_words(plain[first:last]):
            return re.sub(r"\s+", " ", re.sub(r"\Athe\s+|['’]s\Z", "", sentence[first:last]))
    return None


@cache
def load_pipeline(name: str) -> Any:
    """Load a spaCy pipeline, without what finds no places, once per process."""
    import spacy

    return spacy.load(name, exclude=["parser", "tagger", "lemmatizer", "attribute_ruler", "senter"])


def are_apart(place: str | None, other: str | None) -> bool:
    """Tell whether two places are certainly two, and neither lies in the other: both towns, countries or continents."""
    words, others = ({*words_of(one or "")} - _TELL_NOTHING for one in (place, other))
    levels = [next((level for level in (_CONTINENTS, _COUNTRIES) if some & level), None) for some in (words, others)]
    return bool(words and others) and not words & others and levels[0] is levels[1]
