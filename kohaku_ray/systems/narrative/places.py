"""Find the places of a sentence, by regular expressions or by a spaCy pipeline, and which places are apart."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from kohaku_ray.documents.sentences import words_of
from kohaku_ray.systems.narrative.names import CAPITALISED_RUN, BookNames, folded_words, name_words, unaccent

_PREPOSITION = re.compile(
    r"\b(?:in|at|into|to|for|near|on|upon|reached|visited|through|across|towards?)\s+(?:the\s+|this\s+|that\s+)?"
    r"(?:(?:fortress|prison|castle|city|town|village|port|island|isle|coast|dungeons?|province|slums)\s+of\s+(?:the\s+)?)?\Z"
)
_AWAY = re.compile(r"\b(?:from|left|of)\s+(?:the\s+)?\Z")
_CONTINENTS = words_of("europe asia africa america oceania")
_COUNTRIES = words_of(
    """france italy spain britain portugal germany austria russia turkey greece egypt morocco india china japan persia
    australia zealand chile argentina brazil peru mexico canada switzerland holland belgium sweden norway denmark"""
)
_REGIONS = words_of(
    """england scotland ireland wale prussia bavaria hungary algeria arabia syria albania corsica sardinia sicily
    tuscany piedmont lombardy provence normandy brittany burgundy gascony alsace catalonia andalusia castile patagonia
    tasmania victoria queensland elba malta minorca majorca crete rhode madeira jersey guernsey cuba ceylon java"""
)
_ANYWHERE = words_of(
    """faubourg rue street quarter suburb avenue boulevard square indie orient levant state kingdom empire republic
    county shire colony district department territory poland saxony silesia savoy aragon flander"""
)
"""Words of what may lie in, or hold, any other: streets and quarters, lands whose borders moved."""

_SPELLED = {"chili": "chile", "netherland": "holland", "iran": "persia", "livorno": "leghorn"}
_TELL_NOTHING = words_of(
    """island isle cape mount fort port lake river gulf bay strait straits sea place chateau city coast ocean
    north south northern southern eastern western new great house castle town village prison fortress de d la le
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
        spans = [(entity.start_char, entity.end_char) for entity in entities if entity.label_ in ("GPE", "LOC", "FAC")]
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
    """Tell whether two places are certainly two, neither in the other: both towns, regions, countries or continents.

    A final "s" makes no other place: Lyons is Lyon. Streets, quarters and lands whose borders moved are never apart.
    """
    words, others = (
        {
            _SPELLED.get(word, word)
            for word in (word_of_name.removesuffix("s") for word_of_name in {*folded_words(name or "")} - _TELL_NOTHING)
        }
        for name in (place, other)
    )
    if not (words and others) or words & others or (words | others) & _ANYWHERE:
        return False
    levels = [
        next((level for level in (_CONTINENTS, _COUNTRIES, _REGIONS) if some & level), None) for some in (words, others)
    ]
    return levels[0] is levels[1]
