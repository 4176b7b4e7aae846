"""What is read of a text, what excludes what, and what a finding carries."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.systems.narrative.questions import named
from kohaku_ray.systems.narrative.rules import Event, Passage, clash, find_contradictions, find_events

FARIA = named("Faria")


def excerpt(node_id, text):
    return Passage(node_id, "b", "Chapter 1", None, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Faria was born in Rome in 1768.", [("born", 1768)]),
        ("The abbé Faria had been born in 1768, in Rome.", [("born", 1768)]),
        ("In 1820 Faria sailed to Spain.", [("acted", 1820)]),
        ("On the 24th of February, 1815, Faria was then arrested.", [("acted", 1815)]),
        ("Faria was executed in March, 1820 at Rome.", [("died", 1820)]),
        ("Faria executed Fernand in 1820.", []),
        ("Faria was not born in 1768.", []),
        ("Faria died in Rome, where Fernand was born in 1790.", []),
        ("Faria died in 1820 or in 1821.", []),
        ("Faria lived on 1815 francs.", []),
        ("Faria wrote in the 1790s.", []),
        ("Faria’s father died in 1790.", []),
        ("Madame Faria died in 1790.", []),
        ("Fernand died in 1820. He was born in 1790.", []),
        ("Faria sat. He died in 1820.", []),
        ("“Faria died in 1820,” said Fernand.", []),
        ("Faria died in 1820, people said.", []),
        ("Faria dreamt that he died in 1820.", []),
        ("Faria would have died in 1820.", []),
        ("Had Faria died in 1820?", []),
    ],
)
def test_what_is_certain_of_a_person_is_read(text, expected):
    assert [(one.kind, one.year) for one in find_events(text, FARIA)] == expected


def test_in_a_story_a_pronoun_is_the_character_until_a_sentence_is_about_another():
    text = (
        "He was born in 1770. In 1800 he lived in Paris. Marguerite came. He died in 1810. Faria sat. He left in 1812."
    )
    assert [one.year for one in find_events(text, FARIA, is_story=True)] == [1770, 1800, 1812]


@pytest.mark.parametrize(
    ("claim", "fact", "rule"),
    [
        (("born", 1790), ("born", 1791), "born_twice"),
        (("born", 1790), ("born", 1790), None),
        (("born", 1790), ("died", 1791), None),
        (("died", 1829), ("died", 1830), "died_twice"),
        (("acted", 1829), ("acted", 1830), None),
        (("acted", 1830), ("died", 1829), "act_after_death"),
        (("died", 1829), ("acted", 1830), "act_after_death"),
        (("acted", 1829), ("died", 1829), None),
        (("born", 1830), ("died", 1829), None),
    ],
)
def test_rules_fire_on_what_excludes_each_other(claim, fact, rule):
    found = clash(Event(*claim, "c"), Event(*fact, "f"))
    assert (found and found[0]) == rule


STORY = "He was born in Paris in 1770. In 1835 he lived in Paris."
EXCERPTS = [
    excerpt("b:sec1:c0", "Faria rose.\nThe abbé Faria was born in\nRome in 1768. He had “no years”."),
    excerpt("b:sec0:c3", "In 1829 Faria died. Faria’s father smiled."),
    excerpt("b:sec2:c1", "Somebody was born in 1768."),
]


def test_a_finding_says_what_clashes_where_and_why():
    found = find_contradictions(STORY, "Faria", EXCERPTS)
    assert [(one.rule, one.node_id) for one in found] == [("born_twice", "b:sec1:c0"), ("act_after_death", "b:sec0:c3")]
    assert found[0].claim == "He was born in Paris in 1770."
    assert found[0].excerpt == "The abbé Faria was born in\nRome in 1768."
    assert found[0].reason == "Faria born in 1770 in the story, in 1768 in the book"
    assert found[1].reason == "Faria died in 1829 in the book, but is alive in 1835 in the story"
    assert find_contradictions(STORY, "Faria", EXCERPTS[::-1]) == found[::-1]


PIECES = re.findall(r"\S+", "Faria he was born in 1768 1790 Rome Paris , . “ died and lived ’s father")


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.lists(st.sampled_from(PIECES), max_size=30))
def test_findings_quote_verbatim(story, book):
    claim, text = " ".join(story), " ".join(book)
    for finding in find_contradictions(claim, "Faria", [excerpt("n", text)]):
        assert finding.claim in claim
        assert finding.excerpt in text


def test_a_story_of_ten_thousand_words_is_read_in_time():
    story = "Faria was born in Paris in 1770, “ and Foobar met Xyz in Blorp. ” He was not there. " * 600
    start = time.process_time()
    found = find_contradictions(story, "Faria", EXCERPTS)
    assert time.process_time() - start < 10
    assert {finding.rule for finding in found} == {"born_twice"}
