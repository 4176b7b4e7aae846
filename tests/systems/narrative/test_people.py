"""Who is who in a book."""

from __future__ import annotations

import pytest

from kohaku_ray.systems.narrative.reasoning.names import Cast, build_cast

EDMOND = ["“Yes,” said Edmond Dantès."] * 10 + ["Dantès smiled, and M. Dantès bowed to Edmond Dantès."] * 3
LOUIS = ["“No,” said Louis Dantès."]


def names(cast: Cast) -> dict[str, tuple[str, ...]]:
    return {person.name: person.aliases for person in cast.people}


def test_a_surname_goes_to_the_one_who_bears_it_most_often() -> None:
    found = names(build_cast(EDMOND + LOUIS, min_count=1))
    assert found["Edmond Dantès"] == ("Edmond Dantès", "M. Dantès", "Dantès")
    assert found["Louis Dantès"] == ("Louis Dantès",)


def test_a_surname_of_several_stands_for_itself() -> None:
    found = names(build_cast(EDMOND + LOUIS * 5, min_count=1))
    assert found["Edmond Dantès"] == ("Edmond Dantès",)
    assert found["Louis Dantès"] == ("Louis Dantès",)
    assert found["Dantès"] == ("M. Dantès", "Dantès")


def test_men_of_two_ranks_share_their_surname() -> None:
    texts = [
        "The Count of Morcerf bowed.",
        "Viscount de Morcerf bowed.",
        "Albert de Morcerf rose.",
        "Morcerf smiled.",
    ] * 3
    found = names(build_cast(texts))
    assert "Morcerf" not in found["Albert de Morcerf"]


def test_a_woman_is_not_her_husband() -> None:
    texts = [
        "“Yes,” said Madame Danglars.",
        "“No,” said M. Danglars.",
        "Danglars smiled.",
        "Mademoiselle Danglars rose.",
    ] * 3
    assert names(build_cast(texts)) == {
        "Danglars": ("M. Danglars", "Danglars"),
        "Madame Danglars": ("Madame Danglars",),
        "Mademoiselle Danglars": ("Mademoiselle Danglars",),
    }


def test_a_womans_title_and_given_name_is_that_woman() -> None:
    texts = ["Miss Mary smiled.", "“Yes,” said Mary Grant.", "Mary rose.", "Mrs. Grant rose.", "Robert Grant rose."] * 3
    found = names(build_cast(texts))
    assert set(found["Mary Grant"]) == {"Mary Grant", "Miss Mary", "Mary"}
    assert found["Mrs. Grant"] == ("Mrs. Grant",)


def test_a_plural_is_a_family_not_a_person() -> None:
    texts = ["Morrel bowed."] * 5 + ["The Morrels said nothing; the Morrels smiled."]
    assert names(build_cast(texts, min_count=1)) == {"Morrel": ("Morrel",)}


def test_rare_names_and_ordinary_words_are_no_people() -> None:
    texts = ["Suddenly Faria smiled. The door opened. God said nothing. Frenchman, said Jacopo."] * 2 + [
        "A suddenly door"
    ]
    assert names(build_cast(texts, min_count=2)) == {"Faria": ("Faria",), "Jacopo": ("Jacopo",)}
    assert names(build_cast(texts, min_count=3)) == {}


@pytest.mark.parametrize("text", ["", " \n", "no capitals at all", "“‘’”", "A. B. C.", "THE END"])
def test_a_text_without_names_has_no_cast(text: str) -> None:
    assert build_cast([text], min_count=1).people == ()


CAST = build_cast(
    [*EDMOND, *LOUIS, *["“Halt,” cried Ben Joyce. Tom Ayrton rose. Ayrton bowed. Kai-Koumou smiled. Paganel rose."] * 3]
)


@pytest.mark.parametrize(
    ("name", "aliases"),
    [
        ("Edmond Dantès", {"Edmond Dantès", "M. Dantès", "Dantès"}),
        ("dantes", {"Edmond Dantès", "M. Dantès", "Dantès", "dantes"}),
        ("Tom Ayrton/Ben Joyce", {"Tom Ayrton", "Ayrton", "Ben Joyce"}),
        ("Ben Joyce (Ayrton)", {"Tom Ayrton", "Ayrton", "Ben Joyce"}),
        ("Ayrton alias Ben Joyce", {"Tom Ayrton", "Ayrton", "Ben Joyce"}),
        ("Kai-Kumu", {"Kai-Koumou", "Kai-Kumu"}),
        ("Jacques Paganel", {"Paganel", "Jacques Paganel"}),
    ],
)
def test_a_character_is_found_under_every_spelling(name: str, aliases: set[str]) -> None:
    person = CAST.resolve(name)
    assert set(person.aliases) == aliases
    assert person.n_mentions > 0
    assert person.name == name


@pytest.mark.parametrize("name", ["Phileas Fogg", "", "/", "Madame Dantès", "Mr"])
def test_an_unknown_character_is_known_by_name_alone(name: str) -> None:
    person = CAST.resolve(name)
    assert person.n_mentions == 0
    assert set(person.aliases) <= {name}
