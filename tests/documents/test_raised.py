"""The one rule for raised and lowered characters, as a table: text before, run, text after, what is written."""

from itertools import product

from kit.rows import check_rows

from kohaku_ray.documents.text.raised import plain_maths, write_lowered, write_raised

# Most stand in vignettes of R, by the seeds of benchmarks/extraction.py.
EXPONENTS = [
    ("The model has 1.3 x 10", "9", " parameters", "^9"),
    ("3.2×10", "−3", " units", "^-3"),
    ("10", "6", "5", "^6 "),
    ("an area of 300 m", "2", " of floor", "^2"),
    ("9.8 m s", "−2", "", "^-2"),
    ("5 in", "2", "", "^2"),
    ("where R", "2", " is", "^2"),
    ("E = mc", "2", "", "^2"),
    ("e", "−x", "", "^-x"),
    ("x", "n+1", "", "^(n+1)"),
    ("x", "1/2", "", "^(1/2)"),
    ("R", "d−dJ", " E[z|x]u", "^(d-dJ)"),
    ("(xij −¯xi)", "2", "/(n(n −1", "^2"),
    ("(n(u) + α(u))", "2", "", "^2"),
    ("which means 2", "6", " = 64 models", "^6"),
    ("thus 2", "K", " models", "^K"),
    ("(16 + 144 + 25)/21", "2", " = 256/4", "^2"),
    ("2", "32", " addresses", "^32"),
    ("Ca", "2+", " ions", "^2+"),
    ("Na", "+", "", "+"),
    ("x", "*", "", "^*"),
]
ORDINALS = [
    ("the 21", "st", " century", "st"),
    ("le 1", "er", " mai", "er"),
    ("25 ", "o", "C", "°"),
]
MARKS = [
    ("usage effectiveness was 1.58", "2", " in the year", " [2]"),
    ("1,287", "a", "", " [a]"),
    ("1.16", "4,5", "", " [4,5]"),
    ("0.73", "∗∗", "", " [**]"),
    ("Top-10", "2", " list", " [2]"),
    ("1,287 MWh", "2", "", " [2]"),
    ("5 GW", "12", "", " [12]"),
    ("in 2019.", "3", " The", "[3]"),
    ("a study", "12–14", "", " [12-14]"),
    ("552 t CO2e", "3", "", " [3]"),
    ("(March 2019)", "3", ". When", " [3]"),
    ("discussion of other g-priors.)", "4", "", " [4]"),
    ("J. Smith", "1,2,∗", "", " [1,2,*]"),
    ("Doe J", "1", ",", " [1]"),
    ("days.", "[3]", " The", "[3]"),
    ("", "2", "Measured in 2021.", "[2] "),
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


@check_rows(
    ("text", "written"),
    [
        ("1.3 × 10⁹ parameters", "1.3 × 10^9 parameters"),
        ("300 m² of floor, R² of 0.9", "300 m^2 of floor, R^2 of 0.9"),
        ("552 t CO₂e, H₂O", "552 t CO2e, H2O"),
        ("1.58¹,² in the year", "1.58 [1,2] in the year"),
        ("kWh·m⁻²·a⁻¹", "kWh·m^-2·a^-1"),
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
