"""What a text asserts of whom, when and where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.systems.narrative.reasoning.assertion import is_asserted, unasserted
from kohaku_ray.systems.narrative.reasoning.entities import read_names
from kohaku_ray.systems.narrative.reasoning.events import find_events

BOOK = (
    "“Yes,” said Edmond Dantès. Dantès bowed. “No,” said Faria. Faria rose. Fernand turned. “Never,” cried Fernand. "
    "Mercédès wept. “Edmond,” said Mercédès. They lived in Marseilles, in Rome, in Paris and in Spain. They went "
    "from the Château d’If to the Château d’If. “Sir,” said Madame Danglars. Lord Wilmore bowed."
)
NAMES = read_names([BOOK], min_count=1)
DANTES = NAMES.person("Edmond Dantès")


def events(text: str, **given: object) -> list[tuple[object, ...]]:
    found = find_events(text, NAMES, **given)  # type: ignore[arg-type]
    return [(e.kind, e.person.removeprefix("Edmond "), *(v for v in (e.year, e.place, e.age) if v)) for e in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dantès was arrested in 1815.", [("imprisoned", "Dantès", 1815)]),
        ("Dantès, arrested in 1815, bowed.", [("imprisoned", "Dantès", 1815), ("acted", "Dantès")]),
        ("Arrested in 1815, Dantès bowed.", [("imprisoned", "Dantès", 1815), ("acted", "Dantès")]),
        ("Fernand had Dantès arrested in 1815.", [("imprisoned", "Dantès", 1815)]),
        ("The police arrested Dantès in Marseilles.", [("imprisoned", "Dantès", "Marseilles")]),
        ("Dantès was thrown into a dungeon at the Château d’If.", [("imprisoned", "Dantès", "Château d’If")]),
        ("Dantès was released in 1829.", [("freed", "Dantès", 1829)]),
        ("Dantès escaped from the Château d’If in 1829.", [("freed", "Dantès", 1829)]),
        ("Faria died at the Château d’If.", [("died", "Faria", "Château d’If")]),
        ("Fernand killed Faria in 1820.", [("died", "Faria", 1820)]),
        ("Faria was murdered by Fernand.", [("died", "Faria")]),
        ("Faria was born in Rome in 1768.", [("born", "Faria", 1768, "Rome")]),
        ("Fernand married Mercédès in 1816.", [("married", "Fernand", 1816), ("married", "Mercédès", 1816)]),
        ("In 1820 Fernand sailed from Marseilles to Spain.", [("travelled", "Fernand", 1820, "Spain")]),
        ("Faria had lived in Rome.", [("stayed", "Faria", "Rome")]),
        ("Faria, aged sixty in 1828, bowed.", [("aged", "Faria", 1828, 60), ("acted", "Faria", 1828)]),
        (
            "Madame Danglars was born in 1790. She died in 1840.",
            [("born", "Madame Danglars", 1790), ("died", "Madame Danglars", 1840)],
        ),
        ("Dantès’s father died in 1816.", [("died", "Dantès's father", 1816)]),
        ("Faria sold his books and, in 1811, was arrested.", [("imprisoned", "Faria", 1811)]),
        ("Faria bowed. In 1811 he was arrested.", [("acted", "Faria"), ("imprisoned", "Faria", 1811)]),
        ("Faria died in 1829; it was said that Fernand died.", [("died", "Faria", 1829)]),
        ("At sixty, in 1828, Faria died.", [("aged", "Faria", 1828, 60), ("died", "Faria", 1828)]),
        ("Mercédès wept; Fernand was born in 1794.", [("acted", "Mercédès"), ("born", "Fernand", 1794)]),
    ],
)
def test_events_with_their_subject_year_and_place(text: str, expected: list[tuple[object, ...]]) -> None:
    assert events(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "The friend of Dantès died in 1820.",
        "Dantès saw that the captain died in 1820.",
        "Dantès saw the captain, and the captain died in 1820.",
        "Dantès’s ship sailed to Spain in 1820.",
        "He was arrested in 1815.",
        "Faria knew Fernand. He was arrested in 1815.",
        "Faria was silent.\n\nHe was arrested in 1815.",
        "Madame Danglars was there. He was arrested in 1815.",
        "With Dantès died the last hope.",
        "Lord Wilmore’s brother was killed in 1820.",
        "Dantès left. Dantès went home. Dantès stayed.",
        "Born in Rome in 1768, his father was there with Faria.",
        "Old Dantès died in 1816.",
        "An amiable lady, thirty years old in 1816, was a cousin of Faria.",
        "Fernand leaped like a man of twenty in 1838.",
    ],
)
def test_an_uncertain_subject_gives_no_event(text: str) -> None:
    assert events(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "Dantès was not arrested in 1815.",
        "Dantès wasn’t arrested.",
        "Dantès was never arrested.",
        "If Dantès was arrested, Fernand was glad.",
        "Had Dantès been arrested in 1815, Fernand had been glad.",
        "Dantès would be arrested.",
        "Dantès hoped to be released in 1820.",
        "It was said that Dantès died in 1820.",
        "Dantès was believed to have died.",
        "Dantès, according to Fernand, was arrested in 1815.",
        "“Dantès was arrested in 1815.”",
        "«Dantès was arrested in 1815.»",
        '"Dantès was arrested in 1815.',
        "Was it true that Dantès was arrested in 1815?",
        "Dantès dreamt he was arrested in 1815. In 1816 Dantès was released.",
        "Dantès was nearly killed in 1820.",
        "People say that Dantès died in 1820.",
        "Dantès feigned that he died in 1820.",
        "The registry proved that Dantès died in 1820.",
    ],
)
def test_what_is_not_asserted_gives_no_event(text: str) -> None:
    assert events(text) == []


def test_an_island_in_a_name_is_no_condition() -> None:
    assert events("Dantès was imprisoned at the Château d’If.") == [("imprisoned", "Dantès", "Château d’If")]


def test_a_dream_ends_when_somebody_wakes() -> None:
    assert events("Dantès dreamt of Rome. He awoke. In 1820 Dantès died.") == [("died", "Dantès", 1820)]


def test_pronouns_of_a_story_are_its_character() -> None:
    found = events(
        "He was born in 1796. His mother died in 1800. She was kind. He was arrested.", person=DANTES, story=True
    )
    assert found == [("born", "Dantès", 1796), ("died", "Dantès's mother", 1800), ("imprisoned", "Dantès")]


def test_every_name_of_a_character_is_one_person() -> None:
    person = NAMES.person("Faria/Lord Wilmore")
    found = events("Lord Wilmore died in 1820. Faria was born in 1768.", person=person)
    assert found == [("died", "Faria/Lord Wilmore", 1820), ("born", "Faria/Lord Wilmore", 1768)]


def test_relative_years_count_from_the_chapters_anchor() -> None:
    assert events("Ten years later Dantès died.", anchor=1815) == [("died", "Dantès", 1825)]


def test_an_event_quotes_its_sentence() -> None:
    text = "Faria rose.\nDantès was\narrested in 1815. Fernand turned."
    (event,) = [event for event in find_events(text, NAMES) if event.kind == "imprisoned"]
    assert event.text == "Dantès was\narrested in 1815."
    assert text[event.start :].startswith(event.text)


def test_is_asserted_looks_at_the_clause() -> None:
    sentence = "He did not sleep, and he was arrested."
    assert is_asserted(sentence, sentence.index("was"), sentence.index("."))
    assert not is_asserted(sentence, sentence.index("sleep"), sentence.index(","))


def test_quotations_that_are_not_closed_last_to_the_end() -> None:
    assert unasserted("“Yes. No") == ((0, 8),)
    assert unasserted("He said “Yes.” No") == ((8, 14),)


WORDS = [
    "Dantès",
    "Faria",
    "he",
    "was",
    "not",
    "arrested",
    "died",
    "in",
    "1815",
    "Rome",
    ",",
    ".",
    "“",
    "”",
    "and",
    "his",
    "mother",
    "’s",
]


@given(st.lists(st.sampled_from(WORDS), max_size=30))
def test_any_text_gives_events_whose_sentence_stands_in_it(words: list[str]) -> None:
    text = " ".join(words)
    for event in find_events(text, NAMES, DANTES, story=True):
        assert text[event.start : event.start + len(event.text)] == event.text
