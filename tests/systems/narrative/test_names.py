"""Which book and which person a spelling means."""

import pytest

from kohaku_ray.systems.narrative.questions import match_book, named, unaccent

KNOWN = {"In search of the castaways": "", "1184": "The Count of Monte Cristo", "a": "Part: one", "b": "Part: two"}
KNOWN |= {"The Island": "", "An island": ""}


@pytest.mark.parametrize(
    ("book_name", "doc_id"),
    [
        ("IN SEARCH OF CASTAWAYS", "In search of the castaways"),
        ("in_search-of the “Castaways”.", "In search of the castaways"),
        ("In Search of the Castaways; Or, The Children of Captain Grant", "In search of the castaways"),
        ("Le Count of Monté-Cristo", "1184"),
        ("1184", "1184"),
        ("Part: two", "b"),
        ("the island", None),
        ("Around the World in Eighty Days", None),
        ("Count", None),
        ("", None),
        ("The", None),
    ],
)
def test_a_book_is_found_by_the_words_of_its_id_or_title(book_name, doc_id):
    assert match_book(book_name, KNOWN) == doc_id


def test_unaccent_keeps_every_character_in_its_place():
    text = "Château d’If, Mercédès, Haydée — œuvre, Straße, ‘Ñandú’ ½"
    assert len(unaccent(text)) == len(text)
    assert unaccent("Château d’If, Mercédès") == "Chateau d'If, Mercedes"


@pytest.mark.parametrize(
    ("character", "text", "is_named"),
    [
        ("Edmond Dantès", "“I,” said Edmond\nDantes.", True),
        ("Tom Ayrton/Ben Joyce", "It was Ben Joyce.", True),
        ("Kai-Koumou", "Kai-Koumou rose.", True),
        ("Clara Hunt", "Clara Holt met Clara, and Hunter.", False),
        (" / ", "Anybody.", False),
    ],
)
def test_a_person_is_named_in_full(character, text, is_named):
    assert bool(named(character).search(unaccent(text))) == is_named
