"""Formulas in HTML and Markdown, however they are written: read once, as text with its numbers."""

import pytest
from kit.growth import check_linear
from kit.rows import check_rows
from kit.trees import texts

from kohaku_ray.documents.markup.formulas import mark_formulas, write_delimited, write_tex
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.text.raised import write_scripts
from kohaku_ray.values.tex import LONGEST_TEX


def body(text, name="page.html"):
    return texts(parse_file(name, text.encode()))


STRUCTURE = "<mrow><mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup></mrow>"
TEX = '<annotation encoding="application/x-tex">E=mc^2</annotation>'
KATEX = (
    f'<span class="katex"><span class="katex-mathml"><math><semantics>{STRUCTURE}{TEX}</semantics></math></span>'
    '<span class="katex-html" aria-hidden="true"><span>E</span><span>=</span><span>mc2</span></span></span>'
)
WIKIPEDIA = (
    '<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none;"><math><semantics>'
    f"{STRUCTURE}</semantics></math></span>"
    '<img src="x.svg" class="mwe-math-fallback-image-inline" aria-hidden="true" alt="{\\displaystyle E=mc^{2}}"></span>'
)


@check_rows(
    "formula",
    [
        f"<math>{STRUCTURE}</math>",
        f'<math alttext="E=mc^{{2}}">{STRUCTURE}</math>',
        f'<math alttext="E equals m c squared">{STRUCTURE}</math>',
        "<math><mi>E</mi><mo>=</mo><mi>m</mi><mo>&InvisibleTimes;</mo><msup><mi>c</mi><mn>2</mn></msup></math>",
        KATEX,
        WIKIPEDIA,
        '<img class="mwe-math-fallback-image-inline" alt="{\\displaystyle E=mc^{2}}" src="x.svg">',
        '<script type="math/tex">E=mc^2</script>',
        '<img class="formulaInl" alt="$ E = mc^2 $" src="form_1.png">',
        "\\(E=mc^2\\)",
        "$$E=mc^2$$",
    ],
)
def test_a_formula_of_a_page_is_read_once(formula):
    assert body(f"<p>So {formula} holds.</p>") == ["So E = mc^2 holds."]


@pytest.mark.parametrize("where", ["<p>{}</p>", "<ul><li>{}</ul>", "<table><tr><th>a<th>b<tr><td>{}<td>1</table>"])
def test_a_number_of_a_formula_keeps_its_power_everywhere(where):
    number = '<math alttext="1.3\\times 10^{9}"><mn>1.3</mn><mo>×</mo><msup><mn>10</mn><mn>9</mn></msup></math>'
    assert "1.3 × 10^9" in body(where.format(number))[0]


@check_rows(
    ("tex", "text"),
    [
        (r"1.3\times 10^{9}", "1.3 × 10^9"),
        (r"10^{-3}", "10^-3"),
        (r"\frac{a}{b}", "a/b"),
        (r"\dfrac{a+b}{2c}", "(a + b)/(2c)"),
        (r"\mathrm{CO_2}", "CO2"),
        (r"\text{CO}_2\text{e}", "CO2e"),
        (r"1{,}287\,\text{MWh}", "1,287 MWh"),
        (r"1\,287\ \mathrm{MWh}", "1,287 MWh"),
        (r"25^{\circ}C", "25°C"),
        (r"P_{\text{max}} = 300\,\mathrm{W}", "P_max = 300 W"),
        (r"\sum_{i=1}^{n} x_i", "∑_(i = 1)^n x_i"),
        (r"\left( \frac{1}{2} \right)^{2}", "(1/2)^2"),
        (r"\sqrt{x+1} \leq -5", "√(x + 1) ≤ -5"),
        (r"3.5 \pm 0.2\%", "3.5 ± 0.2%"),
        (r"\SI{5}{kWh}", "5 kWh"),
        (r"\mathcal{F} = \mathcal{C}", "F = C"),
    ],
)
def test_tex_is_text(tex, text):
    assert write_tex(tex) == text
    assert body(f"So ${tex}$ it is.", "x.md") == [f"So {text} it is."]


@check_rows(
    "text",
    ["from $5 and $10 on", "US$5-$10", "$5/h, or 10$ a day", "$HOME/$USER", "from $5 million to 10$ million", "5$"],
)
def test_a_price_is_no_formula(text):
    assert write_delimited(text) == text
    assert body(text, "x.md") == [text]


def test_a_formula_that_is_a_script_belongs_to_the_text_before_it():
    text = "10$^{9}$ of CO$_2$, 5 m$^2$, 1.58$^{2}$ found"
    assert write_scripts(write_delimited(text)) == "10^9 of CO2, 5 m^2, 1.58 [2] found"
    assert body(text, "x.md") == ["10^9 of CO2, 5 m^2, 1.58 [2] found"]


def test_formulas_of_markdown():
    text = "$$\n\\frac{E}{2}\n- x\n= 5\n$$\n\n```math\nE = mc^2\n```\n\n\\[\nE=mc^2\n\\]\n\n"
    text += "\\[1\\] and \\(3.8\\), `$x$`"
    assert body(text, "x.md") == ["E/2 - x = 5", "E = mc^2", "E = mc^2", "[1] and (3.8), $x$"]
    inline = 'So <math alttext="1.3\\times 10^{9}"><mn>1.3</mn><mo>&times;</mo></math> is.'
    assert body(inline, "x.md") == ["So 1.3 × 10^9 is."]


def test_code_holds_no_formula():
    assert body("<p>Say <code>$a$ \\(b\\)</code>.</p><pre>$x^2$</pre>") == ["Say $a$ \\(b\\).", "$x^2$"]


@pytest.mark.parametrize(
    ("formula", "n"),
    [
        (lambda n: f"<math>{'<msup><mi>x</mi>' * 400}{'</msup>' * 400}</math>" * n, 3),
        (lambda n: f"\\({'{a+' * n}\\)", 10_000),
        (lambda n: "\\( " * n, 10_000),
        (lambda n: "$a " * n, 10_000),
    ],
)
def test_a_formula_of_any_size_takes_linear_time(formula, n):
    def read(formula):
        assert body(f"<p>So {formula} ends.</p>")[-1].endswith("ends.")

    check_linear(formula, read, n)


@pytest.mark.parametrize("code", ["`", "``` ", "` x\n\n", "`a ``b "])
def test_code_of_any_size_in_markdown_takes_linear_time(code):
    check_linear(lambda n: "$5 " + code * n, mark_formulas, n=20_000)


def test_the_longest_formula_is_kept_as_written():
    tex = "a+" * LONGEST_TEX
    assert write_tex(tex) == tex
