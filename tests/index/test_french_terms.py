import pytest

from kohaku_ray.index.terms import stop_words, tokenise


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("L'énergie", ["énerg"]),
        ("l’énergie des énergies", ["énerg", "énerg"]),
        ("D'abord, jusqu'à lorsqu'il n'est qu'une école d'ingénieurs.", ["abord", "écol", "ingénieur"]),
        ("aujourd'hui, les prud'hommes et la presqu'île", ["prud'homm", "presqu'îl"]),
        ("« Le maire viendra-t-il ? », dit-elle. Ces jours-là !", ["mair", "viendr", "dit", "jour"]),
        ("un rendez-vous", ["rendez-vous"]),
        ("La réunion, les réunions : 3,5 % en 2024", ["réunion", "réunion", "3,5", "2024"]),
        ("e\u0301nergie", ["énerg"]),
        ("C'est-à-dire", []),
    ],
)
def test_french_terms(text, terms):
    assert tokenise(text, "fr") == terms


def test_every_french_stop_word_is_stopped():
    """None keeps an elision or an inversion, or it could never be met."""
    assert {word for word in stop_words("fr") if tokenise(word, "fr")} == set()
    assert {"le", "qu", "est", "été", "aujourd'hui", "quelle"} <= stop_words("fr")


def test_english_stays_what_it_is():
    assert tokenise("the energies of d'Artagnan, est-elle") == ["energies", "d'artagnan", "est-elle"]
    assert tokenise("L'énergie des réunions", "en") == tokenise("L'énergie des réunions")
    assert stop_words("en") == stop_words() != stop_words("fr")
