"""Which book and which person a spelling means."""

from __future__ import annotations

import pytest
from kit.rows import check_rows

from kohaku_ray.systems.narrative.names import BookNames, match_book, read_names, similar, unaccent

KNOWN = {"In search of the castaways": "", "The Count of Monte Cristo": ""}
CASTAWAYS, CRISTO = KNOWN


@check_rows(
    ("book_name", "doc_id"),
    [
        ("In Search of the Castaways", CASTAWAYS),
        ("IN SEARCH OF CASTAWAYS", CASTAWAYS),
        ("in_search-of the “Castaways”.", CASTAWAYS),
        ("Count of Monte-Cristo", CRISTO),
        ("Le Count of Monté Cristo", CRISTO),
        ("In Search of the Castaways; Or, The Children of Captain Grant", CASTAWAYS),
        ("Around the World in Eighty Days", None),
        ("Count", None),
        ("", None),
        ("The", None),
    ],
)
def test_a_book_is_found_by_its_words(book_name: str, doc_id: str | None) -> None:
    assert match_book(book_name, KNOWN) == doc_id


def test_titles_count_beside_ids_and_a_name_that_fits_two_books_is_neither() -> None:
    known = {"2083": "In Search of the Castaways; Or, The Children of Captain Grant", "1184": "Monte Cristo"}
    assert match_book("In search of the castaways", known) == "2083"
    assert match_book("1184", known) == "1184"
    assert match_book("the island", {"The Island": "", "An island": ""}) is None
    assert match_book("Part: two", {"a": "Part: one", "b": "Part: two"}) == "b"


def test_unaccent_keeps_every_character_in_its_place() -> None:
    text = "Château d’If, Mercédès, Haydée — œuvre, Straße, ‘Ñandú’ ½"
    assert len(unaccent(text)) == len(text)
    assert unaccent("Château d’If, Mercédès") == "Chateau d'If, Mercedes"


@check_rows(
    ("word", "other", "same"),
    [
        ("noirtier", "nortier", True),
        ("kaikoumou", "kaikumu", True),
        ("louis", "louise", False),
        ("maria", "marie", False),
        ("grant", "brant", False),
        ("faria", "fara", False),
        ("morrel", "morcerf", False),
    ],
)
def test_spellings_of_one_name(word: str, other: str, same: bool) -> None:
    assert similar(word, other) is similar(other, word) is same


EDMOND = ["“Yes,” said Edmond Dantès."] * 10 + ["Dantès smiled, and M. Dantès bowed to Edmond Dantès."] * 3
LOUIS = ["“No,” said Louis Dantès."]
OTHERS = [
    "“Halt,” cried Ben Joyce. Tom Ayrton rose. Ayrton bowed. Kai-Koumou smiled. Paganel rose.",
    "“Yes,” said Madame Danglars. “No,” said M. Danglars. Danglars smiled. The Count of Morcerf bowed.",
    "Viscount de Morcerf bowed. Albert de Morcerf rose. Morcerf smiled. Noirtier de Villefort sat by M. Noirtier.",
]
BOOK = read_names(EDMOND + LOUIS + OTHERS)


@check_rows(
    ("name", "aliases"),
    [
        ("Edmond Dantès", {"Edmond Dantes", "M. Dantes", "Dantes"}),
        ("dantes", {"Edmond Dantes", "M. Dantes", "Dantes", "dantes"}),
        ("Louis Dantès", {"Louis Dantes"}),
        ("Tom Ayrton/Ben Joyce", {"Tom Ayrton", "Ayrton", "Ben Joyce"}),
        ("Ben Joyce (Ayrton)", {"Tom Ayrton", "Ayrton", "Ben Joyce"}),
        ("Ayrton alias Ben Joyce", {"Tom Ayrton", "Ayrton", "Ben Joyce"}),
        ("Kai-Kumu", {"Kai-Koumou", "Kai-Kumu"}),
        ("Jacques Paganel", {"Paganel", "Jacques Paganel"}),
        ("Noirtier", {"Noirtier", "M. Noirtier", "Noirtier de Villefort"}),
        ("Danglars", {"M. Danglars", "Danglars"}),
        ("Madame Danglars", {"Madame Danglars"}),
        ("Albert de Morcerf", {"Albert de Morcerf"}),
    ],
)
def test_a_character_is_found_under_every_spelling(name: str, aliases: set[str]) -> None:
    person = BOOK.person(name)
    assert set(person.aliases) == aliases
    assert person.n_mentions > 0
    assert person.name == name


def test_a_surname_of_several_stands_for_itself() -> None:
    book = read_names(EDMOND + LOUIS * 5)
    assert set(book.person("Edmond Dantès").aliases) == {"Edmond Dantes"}
    assert set(book.person("Dantès").aliases) == {"M. Dantes", "Dantes"}


@check_rows("name", ["Phileas Fogg", "", "/", "Madame Dantès", "Mr"])
def test_an_unknown_character_is_known_by_name_alone(name: str) -> None:
    person = BOOK.person(name)
    assert person.n_mentions == 0
    assert set(person.aliases) <= {unaccent(name)}


def test_ordinary_words_that_open_a_sentence_are_no_part_of_a_name() -> None:
    book = read_names(["Suddenly Faria smiled. The door opened. A suddenly door"])
    assert set(book.runs) == {"Faria"}
    assert book.is_name("Faria", is_initial=True)
    assert not book.is_name("Suddenly", is_initial=True)
    assert not book.is_name("January", is_initial=False)


@pytest.mark.parametrize("text", ["", " \n", "no capitals at all", "“‘’”"])
def test_a_text_without_names_has_none(text: str) -> None:
    assert read_names([text]) == BookNames({}, frozenset(text.replace("“‘’”", "").split()))
