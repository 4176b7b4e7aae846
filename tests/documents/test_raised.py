"""The one rule for raised and lowered characters, as a table: text before, run, text after, what is written."""

from itertools import product

from kit.rows import check_rows

from kohaku_ray.documents.text.raised import (
    END,
    LOWER,
    RAISE,
    plain_maths,
    write_lowered,
    write_mark,
    write_raised,
    write_scripts,
)

EXPONENTS = [
    ("The model has 1.3 x 10", "9", " parameters", "^9"),
    ("3.2 x10", "9", "", "^9"),
    ("3.2×10", "−3", " units", "^-3"),
    ("about 10", "9", " parameters", "^9"),
    ("(10", "12", ")", "^12"),
    ("10", "n", " steps", "^n"),
    ("10", "n−1", "", "^(n-1)"),
    ("10", "6", "5", "^6 "),
    ("an area of 300 m", "2", " of floor", "^2"),
    ("300m", "2", "", "^2"),
    ("12 km", "2", ".", "^2"),
    ("kWh/m", "2", "", "^2"),
    ("5 cm", "3", "", "^3"),
    ("900 ft", "2", "", "^2"),
    ("9.8 m s", "−2", "", "^-2"),
    ("12 kWh m", "−2", "", "^-2"),
    ("g kg", "-1", "", "^-1"),
    ("5 in", "2", "", "^2"),
    ("where R", "2", " is", "^2"),
    ("σ", "2", "", "^2"),
    ("E = mc", "2", "", "^2"),
    ("E = m c", "2", "", "^2"),
    ("3x", "2", " + 1", "^2"),
    ("e", "−x", "", "^-x"),
    ("A", "T", "A", "^T"),
    ("x", "n", "", "^n"),
    ("x", "n+1", "", "^(n+1)"),
    ("x", "1/2", "", "^(1/2)"),
    ("(1 + x)", "2", "", "^2"),
    ("(a − b)", "3", "", "^3"),
    ("2", "32", " addresses", "^32"),
    ("2", "3", " = 8", "^3"),
    ("5 × 7", "2", "", "^2"),
    ("2", "n", "", "^n"),
    ("x", "W −D", " · Q", "^(W -D)"),
    ("x", "(D−1)", "", "^(D-1)"),
    ("2", "2n", "", "^(2n)"),
    ("mkx", "N−1−k", "", "^(N-1-k)"),
    ("x ", "|M2|", "", "^(|M2|)"),
    ("+ Mx", "D", " + u", "^D"),
    ("Ca", "2+", " ions", "^2+"),
    ("Na", "+", "", "+"),
    ("x", "*", "", "^*"),
]
ORDINALS = [
    ("the 21", "st", " century", "st"),
    ("22", "nd", "", "nd"),
    ("4", "th", " of July", "th"),
    ("le 1", "er", " mai", "er"),
    ("XIX", "e", " siècle", "e"),
    ("19", "e", " siècle", "e"),
    ("25 ", "o", "C", "°"),
]
MARKS = [
    ("usage effectiveness was 1.58", "2", " in the year", " [2]"),
    ("1,287", "a", "", " [a]"),
    ("1,066", "2", "", " [2]"),
    ("1,287", "e", "", " [e]"),
    ("12", "e", "", " [e]"),
    ("2.09", "3", "", " [3]"),
    ("1.16", "4,5", "", " [4,5]"),
    ("0.3", "1", "", " [1]"),
    ("1.10", "9", "", " [9]"),
    ("110", "9", "", " [9]"),
    ("Top-10", "2", " list", " [2]"),
    ("10", "a", "", " [a]"),
    ("10", "1,2", "", " [1,2]"),
    ("10", "*", "", " [*]"),
    ("0.73", "**", "", " [**]"),
    ("0.73", "∗∗", "", " [**]"),
    ("1,287", "†", "", " [†]"),
    ("1,287", "§", "", " [§]"),
    ("12%", "3", "", " [3]"),
    ("1,287 MWh", "2", "", " [2]"),
    ("5 GW", "12", "", " [12]"),
    ("the H100", "2", " draws", " [2]"),
    ("in 2019", "3", "", " [3]"),
    ("in 2019.", "3", " The", "[3]"),
    ("data center", "1", " uses", " [1]"),
    ("in", "2", "", " [2]"),
    ("a study", "12–14", "", " [12-14]"),
    ("CO2", "3", "", " [3]"),
    ("552 t CO2e", "3", "", " [3]"),
    ("H2O", "2", "", " [2]"),
    ("Smith", "1a", "", " [1a]"),
    ("(2021)", "3", "", " [3]"),
    ("(see Table 2)", "3", "", " [3]"),
    ("J. Smith", "1,2", ", A. Doe", " [1,2]"),
    ("J. Smith", "1,2,∗", "", " [1,2,*]"),
    ("J. Smith", "a,b", "", " [a,b]"),
    ("Doe J", "1", ",", " [1]"),
    ("Smith", "1,", " Doe", " [1]"),
    ("days.", "[3]", " The", "[3]"),
    ("measured", "[3]", " in", " [3]"),
    ("", "2", " Measured in 2021.", "[2]"),
    ("", "2", "Measured in 2021.", "[2] "),
    ("", "1", "2019 data.", "[1] "),
    ("", "†", "Deceased.", "[†] "),
    ("", "1", "In 2021.", "[1] "),
    ("of Paris, ", "2", "Institute of", "[2] "),
    ("$35", "12", "", " [12]"),
    ("= 1.58", "2", "", " [2]"),
    ("Product", "new", "", " new"),
]


@check_rows(("before", "run", "after", "written"), EXPONENTS + ORDINALS + MARKS)
def test_a_raised_run_is_an_exponent_an_ordinal_or_a_mark(before, run, after, written):
    assert write_raised(before, run, after) == written


@check_rows(
    ("before", "run", "after", "written"),
    [
        ("CO", "2", "e", "2"),
        ("H", "2", "O", "2"),
        ("x", "max", "", "max"),
        ("C", "n−1", "", "n-1"),
        ("log", "2", "8", "2 "),
        ("1010", "2", "", "_2"),
    ],
)
def test_a_lowered_run_is_joined_but_never_to_a_number(before, run, after, written):
    assert write_lowered(before, run, after) == written


@check_rows("before, run", product(["1.58", "10", "m", "21", ""], ["", " ", ",", "."]))
def test_what_is_no_mark_stays(before, run):
    assert write_raised(before, run, "x") == run


def test_a_known_mark_is_set_apart_whatever_it_follows():
    """A link to a note says itself that it is one."""
    assert [write_mark(before, "9", "") for before in ("10", "m", "x", "end.")] == [" [9]", " [9]", " [9]", "[9]"]


@check_rows(
    ("text", "written"),
    [
        ("1.3 × 10⁹ parameters", "1.3 × 10^9 parameters"),
        ("10⁻³ and 10¹²", "10^-3 and 10^12"),
        ("300 m² of floor, R² of 0.9", "300 m^2 of floor, R^2 of 0.9"),
        ("552 t CO₂e, H₂O", "552 t CO2e, H2O"),
        ("1.58² in the year", "1.58 [2] in the year"),
        ("1.58¹,² in the year", "1.58 [1,2] in the year"),
        ("kWh·m⁻²·a⁻¹", "kWh·m^-2·a^-1"),
        ("² Measured.", "[2] Measured."),
        ("no scripts", "no scripts"),
        ("₂", "2"),
        ("𝐸 = 𝑚𝑐²", "E = mc^2"),
        ("𝟏.𝟓𝟖 of 𝑥ᵢ", "1.58 of xᵢ"),
    ],
)
def test_unicodes_raised_and_lowered_digits_follow_the_same_rule(text, written):
    assert plain_maths(text) == written


def test_a_long_text_takes_time_in_proportion():
    text = "m² " * 50_000
    assert plain_maths(text) == "m^2 " * 50_000
    assert write_raised("(a" * 50_000, "2") == "^2"
    assert write_raised("data " * 50_000, "2") == "[2]"
    assert write_raised("a", "n - " * 50_000).endswith("n -")


def test_a_raised_number_behind_the_index_of_a_letter_is_its_exponent():
    assert write_scripts(f"x{LOWER}i{END}{RAISE}2{END}") == "xi^2"
    assert write_scripts(f"CO{LOWER}2{END}{RAISE}3{END} and H{LOWER}2{END}{RAISE}1{END}") == "CO2 [3] and H2 [1]"
