"""TeX as text, by pylatexenc, which only a text with TeX imports."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.values.tex import END, LONGEST_TEX, LOWER, RAISE, read_tex


@check_rows(
    ("tex", "text"),
    [
        (r"\frac{1}{2}", "1/2"),
        (r"\frac12", "1/2"),
        (r"\dfrac{a+b}{2c}", "(a+b)/(2c)"),
        (r"\boxed{42}", "42"),
        ("$42$", "42"),
        (r"10^{-3}", f"10{RAISE}-3{END}"),
        (r"10^23", f"10{RAISE}23{END}"),
        (r"\mathrm{CO_2}", f"CO{LOWER}2{END}"),
        (r"1{,}287\,\text{MWh}", "1,287 MWh"),
        (r"25^{\circ}C", "25°C"),
        (r"3.5 % and 3.5\%", "3.5 % and 3.5%"),
        (r"\sqrt[3]{x}", "√[3](x)"),
        ("\\", "\\"),
    ],
)
def test_tex_is_text(tex, text):
    assert read_tex(tex) == text


def test_what_is_too_long_too_deep_or_torn_stays():
    for text in ("{" * 10_000, "x" * (LONGEST_TEX + 1), "x^{" * 20_000):
        assert read_tex(text).startswith(text[0])
    for text in (r"\verb", r"\end{array}\]\begin{array}-1\begin{array}"):
        assert read_tex(text) == text


@given(
    st.lists(st.sampled_from([*r"{}[]^_$\. 1x&%~|", r"\frac", r"\begin{array}", r"\end{array}", r"\verb", "\ud800"]))
)
def test_no_tex_raises(pieces):
    assert isinstance(read_tex("".join(pieces)), str)


def test_only_a_value_with_tex_imports_the_library():
    script = (
        "import sys; from kohaku_ray.values.normalise import normalise; normalise('US$ 4.3 million'); "
        "assert 'pylatexenc' not in sys.modules; assert normalise(r'\\frac{1}{2}').numbers == (0.5,); "
        "assert 'pylatexenc' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
