"""Which book and which name a spelling means."""

from __future__ import annotations

import pytest

from kohaku_ray.systems.narrative.reasoning.spelling import match_book, similar, unaccent

KNOWN = ["In search of the castaways", "The Count of Monte Cristo"]


@pytest.mark.parametrize(
    ("book_name", "doc_id"),
    [
        ("In Search of the Castaways", KNOWN[0]),
        ("IN SEARCH OF CASTAWAYS", KNOWN[0]),
        ("in_search-of the “Castaways”.", KNOWN[0]),
        ("Count of Monte-Cristo", KNOWN[1]),
        ("Le Count of Monté Cristo", KNOWN[1]),
        ("In Search of the Castaways; Or, The Children of Captain Grant", KNOWN[0]),
        ("Around the World in Eighty Days", None),
        ("Count", None),
        ("", None),
        ("The", None),
    ],
)
def test_a_book_is_found_by_its_words(book_name: str, doc_id: str | None) -> None:
    assert match_book(book_name, KNOWN) == doc_id


def test_titles_count_beside_ids() -> None:
    known = {
        "2083": "In Search of the Castaways; Or, The Children of Captain Grant",
        "1184": "The Count of Monte Cristo",
    }
    assert match_book("In search of the castaways", known) == "2083"
    assert match_book("1184", known) == "1184"


def test_a_name_that_fits_two_books_is_neither() -> None:
    assert match_book("the island", ["The Island", "An island"]) is None
    assert match_book("Part: two", {"a": "Part: one", "b": "Part: two"}) == "b"


def test_unaccent_keeps_every_character_in_its_place() -> None:
    text = "Château d’If, Mercédès, Haydée — œuvre, Straße, ‘Ñandú’ ½"
    assert len(unaccent(text)) == len(text)
    assert unaccent("Château d’If, Mercédès") == "Chateau d'If, Mercedes"


@pytest.mark.parametrize(
    ("word", "other", "same"),
    [
        ("noirtier", "nortier", True),
        ("kaikoumou", "kaikumu", True),
        ("edmond", "edmund", True),
        ("louis", "louise", False),
        ("maria", "marie", False),
        ("grant", "brant", False),
        ("faria", "fara", False),
        ("morrel", "morcerf", False),
    ],
)
def test_spellings_of_one_name(word: str, other: str, same: bool) -> None:
    assert similar(word, other) is same
    assert similar(other, word) is same
