"""What excludes what, and what a finding carries."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.documents.novel import parse_novel
from kohaku_ray.errors import ConfigError
from kohaku_ray.systems.narrative.reasoning.constraints import act_after_death, travel_while_imprisoned
from kohaku_ray.systems.narrative.reasoning.entities import read_names
from kohaku_ray.systems.narrative.reasoning.events import Event
from kohaku_ray.systems.narrative.reasoning.findings import DEFAULT_RULES, RULES, Excerpt, find_contradictions
from kohaku_ray.systems.narrative.reasoning.timeline import (
    Rule,
    age_against_birth,
    birth_years,
    born_twice,
    died_twice,
    event_before_birth,
    two_places,
)


def event(
    kind: str, year: int | None = None, place: str | None = None, age: int | None = None, who: str = "A"
) -> Event:
    return Event(kind, who, f"{kind} {year} {place}", 0, year, place, age)


def clash(rule: Rule, claims: list[Event], facts: list[Event]) -> list[tuple[str, str]]:
    return [(found.claim.text, found.fact.text) for found in rule(claims, facts)]


@pytest.mark.parametrize(
    ("rule", "claim", "fact", "fires"),
    [
        (born_twice, event("born", 1790), event("born", 1791), True),
        (born_twice, event("born", 1790), event("born", 1790), False),
        (born_twice, event("born", 1790, "Rome"), event("born", None, "Paris"), True),
        (born_twice, event("born", 1790, "Rome"), event("born", 1790, "Italy"), False),
        (born_twice, event("born", 1790), event("born", 1791, who="B"), False),
        (born_twice, event("born", 1790), event("died", 1791), False),
        (died_twice, event("died", 1829), event("died", 1830), True),
        (died_twice, event("died"), event("died", 1830), False),
        (age_against_birth, event("born", 1790), event("aged", 1815, age=19), True),
        (age_against_birth, event("born", 1796), event("aged", 1815, age=19), False),
        (age_against_birth, event("born", 1797), event("aged", 1815, age=19), False),
        (age_against_birth, event("born", 1798), event("aged", 1815, age=19), True),
        (age_against_birth, event("born", 1794), event("aged", 1815, age=19), False),
        (age_against_birth, event("born", 1793), event("aged", 1815, age=19), True),
        (age_against_birth, event("aged", 1810, age=14), event("aged", 1815, age=19), False),
        (age_against_birth, event("aged", 1810, age=20), event("aged", 1815, age=19), True),
        (age_against_birth, event("aged", age=20), event("born", 1815), False),
        (age_against_birth, event("born", 1790), event("born", 1796), False),
        (event_before_birth, event("travelled", 1790), event("born", 1796), True),
        (event_before_birth, event("born", 1796), event("travelled", 1790), True),
        (event_before_birth, event("travelled", 1796), event("born", 1796), False),
        (event_before_birth, event("married", 1794), event("aged", 1815, age=19), False),
        (event_before_birth, event("married", 1793), event("aged", 1815, age=19), True),
        (two_places, event("stayed", 1807, "Rome"), event("stayed", 1807, "Paris"), True),
        (two_places, event("stayed", 1807, "Rome"), event("imprisoned", 1807, "Paris"), True),
        (two_places, event("stayed", 1807, "Rome"), event("stayed", 1808, "Paris"), False),
        (two_places, event("stayed", 1807, "Rome"), event("travelled", 1807, "Paris"), False),
        (two_places, event("stayed", 1807, "Rome"), event("stayed", 1807, "Italy"), False),
        (two_places, event("stayed", None, "Rome"), event("stayed", None, "Paris"), False),
        (act_after_death, event("travelled", 1830), event("died", 1829), True),
        (act_after_death, event("died", 1829), event("travelled", 1830), True),
        (act_after_death, event("travelled", 1829), event("died", 1829), False),
        (act_after_death, event("born", 1830), event("died", 1829), False),
        (act_after_death, event("died"), event("acted"), False),
        (act_after_death, event("died", who="A's father"), event("acted", who="A's father"), True),
        (act_after_death, event("acted", who="A's father"), event("died", who="A's father"), False),
    ],
)
def test_rules_fire_on_what_excludes_each_other(rule: Rule, claim: Event, fact: Event, fires: bool) -> None:
    assert clash(rule, [claim], [fact]) == ([(claim.text, fact.text)] if fires else [])


PRISON = [event("imprisoned", 1815), event("freed", 1829)]


@pytest.mark.parametrize(("year", "fires"), [(1814, False), (1815, False), (1816, True), (1828, True), (1829, False)])
@pytest.mark.parametrize("kind", ["travelled", "married"])
def test_prisoners_neither_travel_nor_marry(kind: str, year: int, fires: bool) -> None:
    deed = event(kind, year)
    assert clash(travel_while_imprisoned, [deed], PRISON) == ([(deed.text, PRISON[0].text)] if fires else [])
    assert clash(travel_while_imprisoned, PRISON, [deed]) == ([(PRISON[0].text, deed.text)] if fires else [])
    assert clash(travel_while_imprisoned, [deed], PRISON[:1]) == []


def test_a_captivity_ends_with_the_next_release() -> None:
    facts = [*PRISON, event("imprisoned", 1840), event("freed", 1845)]
    years = [year for year in range(1810, 1850) if clash(travel_while_imprisoned, [event("travelled", year)], facts)]
    assert years == [*range(1816, 1829), *range(1841, 1845)]


def test_an_age_leaves_two_years_of_birth() -> None:
    assert birth_years(event("aged", 1815, age=19)) == (1795, 1796)
    assert birth_years(event("born", 1796)) == (1796, 1796)
    assert birth_years(event("aged", age=19)) is None
    assert birth_years(event("died", 1796)) is None


NAMES = read_names(["“Yes,” said Faria. Faria rose. They lived in Rome, in Paris."], min_count=1)
STORY = "He was born in Paris in 1770. In 1835 he lived in Paris. His father died young."
EXCERPTS = [
    Excerpt("b:sec1:c0", "Chapter 2", "Faria rose.\nThe abbé Faria was born in\nRome in 1768. He had “no years”."),
    Excerpt("b:sec0:c3", "Chapter 1", "In 1829 Faria died. Faria’s father smiled."),
    Excerpt("b:sec2:c1", "Chapter 3", "Somebody was born in 1768."),
]


def test_a_finding_says_what_clashes_where_and_why() -> None:
    found = find_contradictions(STORY, "Faria", EXCERPTS, NAMES)
    assert [(f.rule, f.severity, f.chapter, f.node_id) for f in found] == [
        ("born_twice", "high", "Chapter 2", "b:sec1:c0"),
        ("act_after_death", "high", "Chapter 1", "b:sec0:c3"),
        ("act_after_death", "medium", "Chapter 1", "b:sec0:c3"),
    ]
    assert found[0].claim == "He was born in Paris in 1770."
    assert found[0].excerpt == "The abbé Faria was born in\nRome in 1768."
    assert found[0].reason == "Faria born in 1770 in the story, in 1768 in the book"


def test_only_rules_that_are_on_fire() -> None:
    assert {f.rule for f in find_contradictions(STORY, "Faria", EXCERPTS, NAMES, ["born_twice"])} == {"born_twice"}
    assert find_contradictions(STORY, "Faria", EXCERPTS, NAMES, []) == ()


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"narrative\.rules names 'born_thrice', known are act_after_death, "):
        find_contradictions(STORY, "Faria", EXCERPTS, NAMES, ["born_thrice"])


def test_the_default_rules_are_known() -> None:
    assert set(RULES) >= DEFAULT_RULES
    assert DEFAULT_RULES


def test_the_same_in_gives_the_same_out() -> None:
    assert find_contradictions(STORY, "Faria", EXCERPTS, NAMES) == find_contradictions(STORY, "Faria", EXCERPTS, NAMES)


def test_order_of_findings_is_that_of_the_excerpts() -> None:
    found = find_contradictions(STORY, "Faria", EXCERPTS[::-1], NAMES)
    assert [f.node_id for f in found] == ["b:sec0:c3", "b:sec0:c3", "b:sec1:c0"]


PIECES = [
    *[
        "Faria",
        "he",
        "was",
        "born",
        "in",
        "1768",
        "1790",
        "Rome",
        "Paris",
        ",",
        ".",
        "“",
        "died",
        "and",
        "lived",
        "’s",
        "father",
    ]
]


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.lists(st.sampled_from(PIECES), max_size=30))
def test_findings_quote_verbatim(story: list[str], book: list[str]) -> None:
    claim, text = " ".join(story), " ".join(book)
    for finding in find_contradictions(claim, "Faria", [Excerpt("n", "c", text)], NAMES):
        assert finding.claim in claim
        assert finding.excerpt in text


@pytest.mark.data
def test_a_novels_names_and_thirty_excerpts_are_read_in_time(data_path: Path) -> None:
    path = data_path / "kdsh" / "books" / "The Count of Monte Cristo.txt"
    if not path.is_file():
        pytest.skip(f"no {path}")
    texts = [part.text for section in parse_novel(path.name, path.read_bytes()).sections for part in section.paragraphs]
    start = time.process_time()
    names = read_names(texts)
    assert time.process_time() - start < 10
    assert {"Paris", "Marseilles", "Château d’If", "Rome"} <= set(names.places)
    assert names.person("Noirtier").n_mentions > 100
    about = [i for i, text in enumerate(texts) if "Faria" in text][:30]
    excerpts = [Excerpt(str(i), "", "\n\n".join(texts[i : i + 6])) for i in about]
    story = "Faria was born in Lyons in 1790. His mother died in 1800. In 1820 he sailed to Spain and lived in Paris."
    seconds = []
    for _ in range(6):
        start = time.process_time()
        find_contradictions(story, "Faria", excerpts, names)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.3  # 50 ms on idle cores, 106 beside a Ray cluster


def test_a_story_of_ten_thousand_words_is_read_in_time() -> None:
    story = "Faria was born in Paris in 1770, “ and Foobar met Xyz in Blorp. He was not there. " * 600
    start = time.process_time()
    found = find_contradictions(story, "Faria", EXCERPTS, NAMES)
    assert time.process_time() - start < 10
    assert [finding.rule for finding in found] == ["born_twice"]
