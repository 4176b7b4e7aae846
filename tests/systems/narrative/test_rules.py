"""What is read of a text, what excludes what, and what a finding carries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kit.growth import check_linear
from kit.rows import check_rows

from kohaku_ray.systems.narrative.events import Event, find_events
from kohaku_ray.systems.narrative.names import BookNames, read_names
from kohaku_ray.systems.narrative.novel import parse_novel
from kohaku_ray.systems.narrative.rules import RULES, BookPassage, Finding, are_apart, check_story, read_facts

CASES = yaml.safe_load((Path(__file__).parent / "fixtures.yaml").read_text(encoding="utf-8"))
BOOKS = {name: read_names([text]) for name, text in CASES["books"].items()}

NAMES = read_names(["“Yes,” said Abbé Faria. Faria rose. “No,” said Fernand. They lived in Rome, in Paris."])
FARIA = NAMES.person("Faria")


def find_contradictions(
    story: str, character: str, passages: list[BookPassage], names: BookNames, *rules: Any
) -> tuple[Finding, ...]:
    return check_story(story, character, read_facts(character, passages, names), names, *rules).findings


def excerpt(node_id: str, chapter: str, text: str) -> BookPassage:
    return BookPassage(node_id, "b", chapter, None, text, 1)


@check_rows("case", CASES["fixtures"])
def test_a_hand_made_case_has_its_findings_and_no_other(case: dict[str, Any]) -> None:
    passages = [excerpt(str(position), "", part) for position, part in enumerate(case["excerpts"])]
    contradictions = find_contradictions(case["story"], case["character"], passages, BOOKS[case["book"]])
    assert [[item.rule, int(item.node_id)] for item in contradictions] == case.get("findings", [])


@check_rows(
    ("text", "expected"),
    [
        ("Faria was born in Rome in 1768.", [("born", 1768)]),
        ("The abbé Faria had been born in 1768, in Rome.", [("born", 1768)]),
        ("In 1820 Faria sailed to Spain.", [("acted", 1820)]),
        ("On the 24th of February, 1815, Faria was then arrested.", [("acted", 1815)]),
        ("Faria was executed in 1820 at Rome.", [("died", 1820)]),
        ("Faria executed Fernand in 1820.", [("acted", 1820)]),
        ("Faria was not born in 1768.", []),
        ("Faria died in Rome, where Fernand was born in 1790.", [("died", None)]),
        ("Faria died in 1820 or in 1821.", []),
        ("Faria’s father died in 1790.", []),
        ("Fernand died in 1820. He was born in 1790.", []),
        ("Faria looked at Fernand. He died in 1820.", []),
        ("Faria sat.\n\nHe died in 1820, this stranger.", []),
        ("“Faria died in 1820,” said Fernand.", []),
        ("Faria died in 1820, people said.", []),
        ("Faria dreamt that he died in 1820.", []),
        ("Faria would have died in 1820.", []),
        ("Had Faria died in 1820?", []),
        ("Napoleon was born in 1769.", []),
    ],
)
def test_what_is_certain_of_a_person_is_read(text: str, expected: list[tuple[str, int]]) -> None:
    assert [(event.kind, event.year) for event in find_events(text, NAMES, FARIA)] == expected


@check_rows(
    ("text", "expected"),
    [
        ("Faria was thrown into prison in 1811.", ["held 1811"]),
        ("Faria was confined in Rome in 1811.", ["held 1811 · Rome"]),
        ("Faria lived in Rome since 1811.", []),
        ("In 1811 Faria left Rome and settled in Paris.", ["travelled 1811"]),
        ("In 1811 Faria was arrested and imprisoned in Rome.", ["arrested 1811"]),
        ("Faria looked at a man who wept and died in 1811.", []),
        ("Faria sat; Fernand died in 1811.", []),
        ("Faria, born at Rome, smiled.", ["born · Rome"]),
        ("Faria lived in London with Fernand in 1811.", ["stayed 1811 · London"]),
        ("“I was born at Rome. I am the abbé Faria.”", []),
        ("“Who will prove that I am Faria? I was born at Rome.”", []),
        ("“I am Fernand. I was born at Rome.”", []),
        ("“I am Faria.” “I was born at Rome.”", []),
    ],
)
def test_places_and_captivities_are_read(text: str, expected: list[str]) -> None:
    assert [event.summary for event in find_events(text, NAMES, FARIA)] == expected


@check_rows(
    ("text", "expected"),
    [
        ("Faria was imprisoned from 1811 to 1816.", ["held 1811–1816"]),
        ("Faria was imprisoned in Rome from the spring of 1811 till May 1816.", ["held 1811–1816 · Rome"]),
        ("From 1811 until 1816 Faria was confined in Rome.", ["held 1811–1816 · Rome"]),
        ("Faria was in prison from 1811 until 1816.", ["held 1811–1816"]),
        ("Faria was imprisoned in 1811 and was released in 1816.", ["held 1811", "freed 1816"]),
        ("Faria was arrested in 1811, and released in 1816.", ["arrested 1811", "freed 1816"]),
        ("Faria was arrested in 1811 and in 1816 escaped.", ["arrested 1811", "freed 1816"]),
        ("In 1811 Faria was sent to prison.", ["held 1811"]),
        ("Faria was taken to the prison of Rome in 1811.", ["held 1811"]),
        ("Faria was a prisoner in the Château d'If in 1811.", ["held 1811 · Château d'If"]),
        ("Faria lay in prison in 1811.", ["held 1811"]),
        ("Faria was born in 1768 and died in 1829.", ["born 1768", "died 1829"]),
        ("Faria lived in Paris from 1811 to 1816.", ["stayed 1811–1816 · Paris"]),
        ("Faria was born between 1768 and 1770.", []),
        ("Faria was arrested between 1811 and 1816.", []),
        ("Faria was thrown into prison between 1811 and 1816.", []),
        ("Faria was arrested in 1811 or in 1816.", []),
        ("Faria was imprisoned from 1816 to 1811.", []),
        ("Faria was in prison at least until 1816.", []),
        ("Faria was not in prison in 1811.", []),
        ("Faria was a prisoner's son in 1811.", []),
        ("Faria lived in Rome until 1811.", []),
        ("Faria rose and Fernand wept and was released in 1816.", []),
        ("Faria was arrested in 1811 and his father wept and was released in 1816.", ["arrested 1811"]),
        ("Faria’s father wept and died in 1816.", []),
        ("Faria’s father was arrested in 1811, was pardoned and died in 1816.", []),
        ("Faria or Fernand was arrested in 1811 and released in 1816.", []),
        (
            "Faria was born in 1768, was arrested in 1811 and died in 1829.",
            ["born 1768", "arrested 1811", "died 1829"],
        ),
        ("Faria knew his friend, the fisherman, was arrested in 1811.", []),
        ("Faria went to prison in 1811.", ["held 1811"]),
        ("In May 1811 Faria was arrested.", ["arrested 1811"]),
        ("Faria may have been arrested in 1811.", []),
        ("Faria was arrested in 1811 and Fernand was released in 1816.", ["arrested 1811"]),
    ],
)
def test_captivities_and_stays_with_two_years_are_read(text: str, expected: list[str]) -> None:
    assert [event.summary for event in find_events(text, NAMES, FARIA)] == expected


@pytest.mark.parametrize(
    "book",
    [
        "Faria was imprisoned from 1811 to 1816.",
        "Faria was imprisoned in 1811 and was released in 1816.",
        "Faria was in prison from 1811 until 1816.",
        "In 1811 Faria was sent to prison. He was released in 1816.",
        "Faria was a prisoner in the Chateau d'If in 1811. Faria escaped in 1816.",
    ],
)
@pytest.mark.parametrize(("year", "rules"), [(1810, []), (1813, ["travel_while_imprisoned"]), (1817, [])])
def test_a_journey_in_a_plainly_told_captivity_is_found(book: str, year: int, rules: list[str]) -> None:
    contradictions = find_contradictions(f"In {year} Faria sailed to Spain.", "Faria", [excerpt("n", "c", book)], NAMES)
    assert [item.rule for item in contradictions] == rules


@check_rows(
    ("place", "other", "expected"),
    [
        ("Rome", "Parma", True),
        ("Rome", "the city of Rome", False),
        ("Perth", "Scotland", False),
        ("Spain", "Greece", True),
        ("island of Elba", "Elba", False),
        ("Asia", "Europe", True),
        ("Rome", None, False),
        ("Château d’If", "Chateau d'If", False),
        ("Tuscany", "Italy", False),
        ("Normandy", "France", False),
        ("Scotland", "Britain", False),
        ("England", "Great Britain", False),
        ("Ireland", "Britain", False),
        ("Wales", "Britain", False),
        ("Prussia", "Germany", False),
        ("Patagonia", "Argentina", False),
        ("Tasmania", "Australia", False),
        ("Sicily", "Italy", False),
        ("Piedmont", "Italy", False),
        ("Poland", "Russia", False),
        ("Syria", "Turkey", False),
        ("Hungary", "Austria", False),
        ("United States", "New York", False),
        ("United Kingdom", "England", False),
        ("Chili", "Chile", False),
        ("Marseille", "Marseilles", False),
        ("Lyon", "Lyons", False),
        ("Holland", "the Netherlands", False),
        ("London", "Baker Street", False),
        ("Indies", "Asia", False),
        ("Orient", "Asia", False),
        ("Paris", "London", True),
        ("Rome", "Marseilles", True),
        ("Naples", "Lyon", True),
        ("Normandy", "Provence", True),
        ("England", "Spain", True),
    ],
)
def test_places_are_apart_where_neither_may_hold_the_other(place: str, other: str | None, expected: bool) -> None:
    assert are_apart(place, other) is are_apart(other, place) is expected


@pytest.mark.parametrize(
    ("claim", "fact", "rules"),
    [
        ("Faria was born in Tuscany.", "Faria was born in Italy.", []),
        ("Faria was born in Marseille.", "Faria was born in Marseilles.", []),
        ("In 1815 Faria lived in Scotland.", "In 1815 Faria lived in Britain.", []),
        ("In 1815 Faria lived in Scotland.", "In 1815 Faria lived in Spain.", ["two_places"]),
    ],
)
def test_a_region_and_its_country_are_no_contradiction(claim: str, fact: str, rules: list[str]) -> None:
    assert [
        contradiction.rule for contradiction in find_contradictions(claim, "Faria", [excerpt("n", "c", fact)], NAMES)
    ] == rules


def test_in_a_story_a_pronoun_is_the_character_until_another_is_named() -> None:
    text = "He was born in 1770. His aunt slept. He lived in Paris in 1800. Marguerite came. He died in 1810."
    assert [event.year for event in find_events(text, NAMES, FARIA, is_story=True)] == [1770, 1800]


@check_rows(
    ("rule", "claim", "fact", "fires"),
    [
        ("born_twice", ("born", 1790), ("born", 1791), True),
        ("born_twice", ("born", 1790), ("born", 1790), False),
        ("born_twice", ("born", 1790), ("died", 1791), False),
        ("died_twice", ("died", 1829), ("died", 1830), True),
        ("died_twice", ("died", 1829), ("died", 1829), False),
        ("act_after_death", ("acted", 1830), ("died", 1829), True),
        ("act_after_death", ("died", 1829), ("acted", 1830), True),
        ("act_after_death", ("acted", 1829), ("died", 1829), False),
        ("act_after_death", ("born", 1830), ("died", 1829), False),
        ("born_twice", ("born", None, "", "", "Parma"), ("born", None, "", "", "Rome"), True),
        ("born_twice", ("born", None, "", "", "Perth"), ("born", None, "", "", "Scotland"), False),
        ("two_places", ("acted", 1811, "", "stayed", "Paris"), ("acted", 1811, "", "stayed", "Rome"), True),
        ("two_places", ("acted", 1811, "", "stayed", "Paris"), ("acted", 1812, "", "stayed", "Rome"), False),
        ("two_places", ("acted", 1813, "", "stayed", "Paris"), ("acted", 1811, "", "held", "Rome", 1816), True),
        ("two_places", ("acted", 1811, "", "travelled", "Paris"), ("acted", 1811, "", "stayed", "Rome"), False),
        ("travel_while_imprisoned", ("acted", 1813, "", "travelled"), ("acted", 1811, "", "held", None, 1816), True),
        (
            "travel_while_imprisoned",
            ("acted", 1811, "", "arrested", None, 1816),
            ("acted", 1813, "", "travelled"),
            True,
        ),
        ("travel_while_imprisoned", ("acted", 1813, "", "arrested"), ("acted", 1811, "", "held", None, 1816), True),
        ("travel_while_imprisoned", ("acted", 1816, "", "travelled"), ("acted", 1811, "", "held", None, 1816), False),
        ("travel_while_imprisoned", ("acted", 1813, "", "travelled"), ("acted", 1811, "", "held"), False),
        ("travel_while_imprisoned", ("acted", 1813, ""), ("acted", 1811, "", "held", None, 1816), False),
    ],
)
def test_rules_fire_on_what_excludes_each_other(rule: str, claim: Any, fact: Any, fires: bool) -> None:
    events = (Event(kind, year, "", *rest[1:]) for kind, year, *rest in (claim, fact))
    assert (RULES[rule](*events) is not None) is fires


STORY = "He was born in Paris in 1770. In 1835 he lived in Paris."
EXCERPTS = [
    excerpt("b:sec1:c0", "Chapter 2", "Faria rose.\nThe abbé Faria was born in\nRome in 1768. He had “no years”."),
    excerpt("b:sec0:c3", "Chapter 1", "In 1829 Faria died. Faria’s father smiled."),
    excerpt("b:sec2:c1", "Chapter 3", "Somebody was born in 1768."),
]


def test_a_finding_says_what_clashes_where_and_why() -> None:
    contradictions = find_contradictions(STORY, "Faria", EXCERPTS, NAMES)
    assert [(item.rule, item.chapter, item.node_id) for item in contradictions] == [
        ("born_twice", "Chapter 2", "b:sec1:c0"),
        ("act_after_death", "Chapter 1", "b:sec0:c3"),
    ]
    assert contradictions[0].claim == "He was born in Paris in 1770."
    assert contradictions[0].excerpt == "The abbé Faria was born in\nRome in 1768."
    assert contradictions[0].reason == "Faria born in 1770 in the story, in 1768 in the book"
    assert contradictions[1].reason == "Faria died in 1829 in the book, but is alive in 1835 in the story"
    assert find_contradictions(STORY, "Faria", EXCERPTS[::-1], NAMES) == contradictions[::-1]


def test_only_rules_that_are_on_fire() -> None:
    assert {
        contradiction.rule for contradiction in find_contradictions(STORY, "Faria", EXCERPTS, NAMES, ["born_twice"])
    } == {"born_twice"}
    assert find_contradictions(STORY, "Faria", EXCERPTS, NAMES, []) == ()


PIECES = re.findall(r"\S+", "Faria he was born in 1768 1790 Rome Paris , . “ died and lived ’s father")


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.lists(st.sampled_from(PIECES), max_size=30))
def test_findings_quote_verbatim(story: list[str], book: list[str]) -> None:
    claim, text = " ".join(story), " ".join(book)
    for finding in find_contradictions(claim, "Faria", [excerpt("n", "c", text)], NAMES):
        assert finding.claim in claim
        assert finding.excerpt in text


@pytest.mark.data
def test_the_names_of_a_novel_are_read_in_linear_time(data_path: Path) -> None:
    path = data_path / "kdsh" / "books" / "The Count of Monte Cristo.txt"
    if not path.is_file():
        pytest.skip(f"no {path}")
    texts = [part.text for section in parse_novel(path.stem, path.read_bytes()).sections for part in section.paragraphs]
    assert read_names(texts).person("Noirtier").n_mentions > 100
    check_linear(lambda n: texts[:n], read_names, n=len(texts) // 4)


def test_time_grows_with_the_length_of_a_story() -> None:
    def read(story: str) -> None:
        assert {finding.rule for finding in find_contradictions(story, "Faria", EXCERPTS, NAMES)} == {"born_twice"}

    sentences = "Faria was born in Paris in 1770, “ and Foobar met Xyz in Blorp. ” He was there. "
    check_linear(lambda n: sentences * n, read, n=150)


def test_every_rule_has_a_case_that_fires() -> None:
    assert {rule for case in CASES["fixtures"] for rule, _ in case.get("findings", [])} == set(RULES)
