"""The places of a book."""

from __future__ import annotations

import pytest

from kohaku_ray.systems.narrative.reasoning.places import are_apart, build_gazetteer


def test_places_stand_behind_words_of_place_or_hold_one() -> None:
    texts = [
        "He lived in Marseilles. They sailed to the island of Elba and rounded Cape Horn near Marseilles.",
        "“In truth,” said Faria in French. He had no trust in Faria. In January they left Elba. Faria rose. Cape Horn!",
    ]
    assert set(build_gazetteer(texts)) == {"Marseilles", "Cape Horn", "Elba"}


def test_adjectives_of_places_are_none() -> None:
    texts = [
        "He lived in Paris, in Parisian rooms, in Paris, in Australian bush in Australia, and in Tuscan hats in Milan."
    ] * 2
    found = set(build_gazetteer(texts))
    assert {"Paris", "Australia", "Milan"} <= found
    assert not {"Parisian", "Australian"} & found


def test_rare_places_are_left_out_and_the_longest_come_first() -> None:
    texts = ["He went to Rome. He lived in Rome. He came from the Château d’If to the Château d’If. He lived in Lyons."]
    assert build_gazetteer(texts) == ("Château d’If", "Rome")
    assert "Lyons" in build_gazetteer(texts, min_count=1)


@pytest.mark.parametrize(
    ("place", "other", "apart"),
    [
        ("Paris", "Rome", True),
        ("France", "Italy", True),
        ("Europe", "Africa", True),
        ("Paris", "France", False),
        ("Paris", "Europe", False),
        ("Elba", "island of Elba", False),
        ("Château d’If", "Chateau d'If", False),
        ("New Zealand", "New South Wales", False),
        ("Rome", "", False),
    ],
)
def test_places_are_apart_when_neither_may_hold_the_other(place: str, other: str, apart: bool) -> None:
    assert are_apart(place, other) is apart
    assert are_apart(other, place) is apart
