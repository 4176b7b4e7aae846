"""French numbers, and citations in prose: what is read, what is cut out, and that hostile text takes no time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.growth import check_linear
from kit.rows import check_rows

from kohaku_ray.systems.hybrid.answer import (
    WORDS,
    bare_value,
    check_citations,
    numbers_of,
    read_numbers,
    stated_value,
    without_citations,
)
from kohaku_ray.systems.hybrid.stages import Text


@check_rows(
    ("text", "numbers"),
    [
        ("1 234,5", [1234.5]),
        ("1\u202f234\u00a0567", [1234567]),
        ("1.234,5 et 1.234.567", [1234.5, 1234567]),
        ("3,14 puis 2.5", [2.5, 3.14]),
        ("18,5 millions d'euros", [18.5e6]),
        ("2 milliards, 3 millions et 40 mille", [40e3, 3e6, 2e9]),
        ("En 2024, 412 habitants", [412, 2024]),
        ("en 2024 412 habitants", [412, 2024]),
        ("94 % ou 94%", [94, 94]),
        ("-4 °C, puis −2 °C", [-4, -2]),
        ("entre 10-12 jours", [10, 12]),
        ("le A6, le CO2, 80GB et la 3e fois", []),
        ("aucun", []),
    ],
)
def test_french_numbers(text, numbers):
    assert list(numbers_of(text)) == pytest.approx(numbers)


def test_numbers_stand_in_reading_order_with_their_place():
    assert read_numbers("9,6 millions, puis 4.") == [(9.6e6, "9,6 millions", 12), (4, "4", 20)]


@check_rows(
    ("value", "unit", "bare"),
    [
        ("1 150 emplois", "emplois", "1150"),
        ("9,6 millions d'euros", "millions d'euros", "9.6"),
        ("9,6", "millions d'euros", "9.6"),
        ("9,6 millions d'euros", "euros", "9600000"),
        ("1,2", None, "1.2"),
        ("1 234,5", "", "1234.5"),
        ("18 à 20", "jours", "18 à 20"),
        ("Hortense Valade", None, "Hortense Valade"),
        ("vers 1962", None, "vers 1962"),
        ("", None, ""),
    ],
)
def test_a_value_of_one_number_is_written_bare(value, unit, bare):
    assert bare_value(value, unit) == bare


@check_rows(
    ("value", "answer", "unit", "stated"),
    [
        ("habitants", "412 habitants", "habitants", "412"),
        ("Habitants", "412 habitants [1002 / ouest.example / 2024-01-12].", "habitants", "412"),
        ("texte", "La taxe rapportera 9,6 millions d'euros par an.", "millions d'euros", "9.6"),
        ("habitants", "412 habitants, dont 60 enfants", "habitants", WORDS),
        ("habitants", "Tous les habitants", "habitants", WORDS),
        ("400", "412 habitants", "habitants", "400"),
        ("texte", "Elle a cédé en 1962.", None, WORDS),
        ("la digue", "La digue, de 412 mètres", "habitants", "la digue"),
        ("", "Elle a cédé.", None, WORDS),
    ],
)
def test_a_value_that_is_the_unit_or_words_gives_way_to_the_answers_one_number(value, answer, unit, stated):
    assert stated_value(value, answer, unit) == stated


def text(ref_id, netloc="ouest.example", date="2024-01-12"):
    return Text(f"d:{ref_id}", "d", "paragraph", "Dit.", ref_id, netloc, date)


A, B, ODD = text("1002"), text("1003", None, ""), text("a/b [x]; y", "hexa.example")
MARK_A, MARK_B = "[1002 / ouest.example / 2024-01-12]", "[1003 / ? / ?]"


def test_a_mark_is_the_form_of_a_citation():
    assert (A.mark, B.mark, ODD.mark) == (MARK_A, MARK_B, "[a/b (x), y / hexa.example / 2024-01-12]")


@check_rows(
    ("prose", "kept", "refs", "cut"),
    [
        (f"Oui {MARK_A}.", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [1002 / autre.example / 1999-01-01].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [1002/ouest.example/2024-01-12].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [ 1002 ].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [id=1002 / ouest.example / 12/01/2024].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [9999 / faux.example / 2024-01-12].", "Oui.", [], ["[9999 / faux.example / 2024-01-12]"]),
        (f"[1003 / x / y ; 1002 / x / y] et {MARK_B}.", f"{MARK_B} {MARK_A} et {MARK_B}.", ["1003", "1002"], []),
        ("Oui [1002 / x / y ; 77 / z / z].", f"Oui {MARK_A}.", ["1002"], ["[77 / z / z]"]),
        (f"Oui {ODD.mark}.", f"Oui {ODD.mark}.", ["a/b [x]; y"], []),
        ("Il l'a dit [sic] en [2024] […].", "Il l'a dit [sic] en [2024] […].", [], []),
        ("Oui [[1002 / x / y]].", f"Oui [{MARK_A}].", ["1002"], []),
        ("Sans fin [1002 / ouest.example", "Sans fin [1002 / ouest.example", [], []),
        ("", "", [], []),
    ],
)
def test_known_citations_stay_and_unknown_ones_are_cut_out(prose, kept, refs, cut):
    result = check_citations(prose, [A, B, ODD])
    assert (result.text, list(result.ref_ids), list(result.cut)) == (kept, refs, cut)


def test_numbers_of_citations_are_no_numbers_of_the_answer():
    assert without_citations(f"412 habitants {MARK_A} [sic].") == "412 habitants  [sic]."


HOSTILE = st.text(st.sampled_from("[]/; 1023abé\n|=\u00a0") | st.characters(), max_size=200)


@given(HOSTILE, st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=4))
def test_what_is_left_cites_the_context_alone(prose, ref_ids):
    texts = [text(ref_id) for ref_id in ref_ids]
    result = check_citations(prose, texts)
    again = check_citations(result.text, texts)
    assert set(result.ref_ids) <= set(ref_ids)
    assert again.cut == ()
    assert set(again.ref_ids) >= set(result.ref_ids)


@pytest.mark.parametrize("part", ["1", "123 ", "1.", "1 234", "-", "[", " ", "[a/", "[a / b / c ;", "/ "])
def test_time_of_a_hostile_reply_grows_with_its_length(part):
    def read(hostile: str) -> None:
        numbers_of(hostile)
        check_citations(hostile, [A, B])

    check_linear(lambda n: part * (n // len(part)) + "x", read, n=100_000)
