import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.systems.hybrid.reading import check_citations, without_citations
from kohaku_ray.systems.hybrid.texts import Text


def text(ref_id, netloc="ouest.example", date="2024-01-12"):
    return Text(f"d:{ref_id}", "d", "paragraph", "Dit.", ref_id, netloc, date)


A, B, ODD = text("1002"), text("1003", None, ""), text("a/b [x]; y", "hexa.example")
MARK_A, MARK_B = "[1002 / ouest.example / 2024-01-12]", "[1003 / ? / ?]"


def test_a_mark_is_the_form_of_a_citation():
    assert A.mark == MARK_A
    assert B.mark == MARK_B
    assert ODD.mark == "[a/b (x), y / hexa.example / 2024-01-12]"


@pytest.mark.parametrize(
    ("prose", "kept", "refs", "cut"),
    [
        (f"Oui {MARK_A}.", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [1002 / autre.example / 1999-01-01].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [1002/ouest.example/2024-01-12].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [ 1002 ].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [id=1002 / ouest.example / 12/01/2024].", f"Oui {MARK_A}.", ["1002"], []),
        ("Oui [9999 / faux.example / 2024-01-12].", "Oui.", [], ["[9999 / faux.example / 2024-01-12]"]),
        (
            f"Oui [1003 / x / y ; 1002 / x / y] et {MARK_B}.",
            f"Oui {MARK_B} {MARK_A} et {MARK_B}.",
            ["1003", "1002"],
            [],
        ),
        ("Oui [1002 / x / y ; 77 / z / z].", f"Oui {MARK_A}.", ["1002"], ["[77 / z / z]"]),
        ("Il l'a dit [sic] en [2024] […].", "Il l'a dit [sic] en [2024] […].", [], []),
        ("Oui [[1002 / x / y]].", f"Oui [{MARK_A}].", ["1002"], []),
        ("Sans fin [1002 / ouest.example", "Sans fin [1002 / ouest.example", [], []),
        ("", "", [], []),
    ],
)
def test_known_citations_stay_and_unknown_ones_are_cut_out(prose, kept, refs, cut):
    found = check_citations(prose, [A, B])
    assert (found.text, list(found.ref_ids), list(found.cut)) == (kept, refs, cut)


def test_an_id_with_slashes_and_brackets_can_be_cited():
    found = check_citations(f"Oui {ODD.mark}.", [A, ODD])
    assert found.ref_ids == ("a/b [x]; y",)
    assert found.cut == ()


def test_numbers_of_citations_are_no_numbers_of_the_answer():
    assert without_citations(f"412 habitants {MARK_A} [sic].") == "412 habitants  [sic]."


HOSTILE = st.text(st.sampled_from("[]/; 1023abé\n|=\u00a0") | st.characters(), max_size=200)


@given(HOSTILE, st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=4))
def test_what_is_left_cites_the_context_alone(prose, ref_ids):
    texts = [text(ref_id) for ref_id in ref_ids]
    found = check_citations(prose, texts)
    again = check_citations(found.text, texts)
    assert set(found.ref_ids) <= set(ref_ids)
    assert again.cut == ()
    assert set(again.ref_ids) >= set(found.ref_ids)


@given(st.lists(st.sampled_from([f"Oui {MARK_A}.", "Non [9 / x / y].", "Rien.", f"{MARK_B} vu."]), max_size=8))
def test_checking_twice_changes_nothing(parts):
    once = check_citations(" ".join(parts), [A, B])
    assert check_citations(once.text, [A, B]).text == once.text
    assert len(once.cut) == sum("[9" in part for part in parts)


@pytest.mark.parametrize(
    "prose", ["[" * 200_000, " " * 200_000, "[a/" * 70_000, "[a / b / c ;" * 20_000, "/ " * 99_999]
)
def test_a_long_hostile_reply_takes_no_time(prose):
    began = time.process_time()
    check_citations(prose, [A, B])
    assert time.process_time() - began < 2
