import pytest
from kit.rows import check_rows
from kit.trees import outline, sentences

from kohaku_ray.documents.model import Attachment
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError


def parse(text):
    return parse_file("docs/notes.md", text.encode())


def only(text):
    ((paragraph,),) = [section.paragraphs for section in parse(text).sections]
    return paragraph


def test_headings_make_sections_titled_with_their_path():
    document = parse(
        "Front.\n\n# Report\n\nIntro.\n\n## Results\n\n### Power\n\n400 W.\n\n"
        "## Empty\n\n# Part two\n\n#### Deep\n\nEnd.\n"
    )
    assert document.title == "Report"
    assert outline(document) == [
        ("Report", ["Front."]),
        ("Report", ["Intro."]),
        ("Results › Power", ["400 W."]),
        ("Empty", ["Empty"]),
        ("Part two › Deep", ["End."]),
    ]


def test_without_a_heading_the_stem_is_the_title():
    document = parse("Just text.")
    assert (document.doc_id, document.title, outline(document)) == ("notes", "notes", [("notes", ["Just text."])])


def test_front_matter_is_metadata():
    document = parse(
        "---\ntitle: Energy\nid: energy-2024\nurl: https://x.org\nyear: 2024\ndate: 2024-05-01\nopen: true\n"
        "tags: [a, b]\nnested: {a: 1}\nempty:\n---\n# Heading\n\nText.\n"
    )
    assert (document.doc_id, document.title) == ("energy-2024", "Energy")
    assert document.metadata == {
        "url": "https://x.org",
        "year": "2024",
        "date": "2024-05-01",
        "open": "true",
        "tags": "a, b",
    }
    assert outline(document) == [("Heading", ["Text."])]


def test_rules_around_text_are_no_front_matter():
    assert outline(parse("---\nText here\n---\n\nMore."))[-1] == ("Text here", ["More."])
    assert outline(parse("---\n---\nText.")) == [("notes", ["Text."])]


@check_rows(
    ("front", "problem"),
    [
        ("title: a: b", "mapping values are not allowed here at line 2"),
        ("a: 1\nb: [1", "at line "),
        ("date: 2024-13-45", "month must be in 1..12"),
        ("x: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        *[(f"a: {value}", "") for value in ("1" + ":1" * 3000, "0x" + "1" * 5000, "!!bool x", "!!timestamp x")],
        *[(f"a: {value}", "") for value in ("!!int ''", "{[a]: 1}", "!!float {a: 1}")],
    ],
)
def test_bad_front_matter_is_named(front, problem):
    with pytest.raises(DataError) as caught:
        parse(f"---\n{front}\n---\nText.")
    assert str(caught.value).startswith("docs/notes.md: the front matter is not YAML: ")
    assert problem in str(caught.value)
    assert str(caught.value).endswith("quote values with colons.")


def test_inline_markup_becomes_readable_text():
    text = only(
        "A **bold** *word*, `x_y`, [a link](http://a.b), ~~old~~, H<sub>2</sub>O &amp; \\*more\\*.\n"
        "Next  \nline<br>end."
    ).text
    assert text == "A bold word, x_y, a link, , H2O & *more*. Next\nline\nend."


def test_a_list_is_one_paragraph_of_lines():
    paragraph = only("- one item. Two sentences\n- two, of\n  two lines\n  - inner\n\n    more\n  3. x\n  4. y\n")
    assert paragraph.text == "- one item. Two sentences\n- two, of two lines\n  - inner\n    more\n  3. x\n  4. y"
    assert sentences(paragraph) == [
        "- one item.",
        "Two sentences",
        "- two, of two lines",
        "- inner\n    more",
        "3. x",
        "4. y",
    ]


def test_a_table_row_reads_as_columns_and_values():
    paragraph = only("| Model | Power (W) | |\n|---|---|---|\n| A.100 vs. B | **400** | x |\n| H\\|100. New | | |\n")
    assert paragraph.text == "Model: A.100 vs. B; Power (W): 400; x\nModel: H|100. New"
    assert sentences(paragraph) == paragraph.text.split("\n")
    assert only("| A | B |\n|---|---|\n").text == "A | B"


@pytest.mark.parametrize("block", ["```python\n{}\n```", "~~~\n{}\n~~~"])
def test_code_is_one_paragraph_and_one_sentence(block):
    code = 'print("A. B.")\n\n    y = 1'
    assert sentences(only(block.format(code))) == [code]


def test_quotes_and_html_are_read_as_text():
    document = parse(
        "> Said one.\n>\n> # Inner\n\n<div>Hi <b>you</b><br>&lt;there&gt;<script>bad()</script></div>\n\n"
        "<!-- gone\n\nfor good -->\n"
    )
    assert outline(document) == [("notes", ["Said one.", "Inner", "Hi you\n<there>"])]


def test_images_are_attachments_with_their_alternative_text():
    document = parse(
        '![A *chart*. It rises](img/p.png)\n\nText ![](i.png "Small") goes ![](x.png) on.\n\n- ![In list](l.png)\n\n'
        "## ![Logo](logo.svg) Name\n\n![](data:image/png;base64,AAAA)\n"
    )
    first, second = document.sections
    assert [(p.text, p.attachment) for p in first.paragraphs] == [
        ("A chart. It rises", Attachment("image", "img/p.png", "A chart. It rises")),
        ("Text goes on.", None),
        ("Small", Attachment("image", "i.png", "Small")),
        ("", Attachment("image", "x.png", None)),
        ("In list", Attachment("image", "l.png", "In list")),
    ]
    assert sentences(first.paragraphs[0]) == ["A chart.", "It rises"]
    assert first.paragraphs[3].sentences == ()
    assert second.title == "Name"
    assert [p.attachment for p in second.paragraphs] == [Attachment("image", "logo.svg", "Logo"), Attachment("image")]


def test_merges_that_double_a_mapping_are_refused():
    lines = ["a0: &a0 {k: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 60))]
    with pytest.raises(DataError, match="a mapping has 2,048 keys, at most 2,000 are allowed"):
        parse_file("x.md", "\n".join(["---", *lines, "---", "Text."]).encode())
    merged = "---\na: &a {year: 2024}\n<<: *a\n---\nText."
    assert parse_file("x.md", merged.encode()).metadata == {"year": "2024"}


def test_a_table_in_html_is_read_to_its_end():
    head = "<tr><th>Model</th><th>Power</th></tr>"
    for source in (
        f"<table>{head}<tr><td>H100</td><td>700 W</td></tr></table>",
        f"<html><body><table>\n{head}\n\n    <tr><td>H100</td>\n\n<td>700 W</td></tr>\n</table></body></html>",
        f"<div>\n<table>\n\n{head}<tr><td>H100<td>700 W</table>\n</div>",
    ):
        document = parse(f"# Power\n\nBefore.\n{source}\n\nAfter *it*.\n")
        assert outline(document) == [("Power", ["Before.", "Model: H100; Power: 700 W", "After it."])]
        assert document.sections[0].paragraphs[1].attachment == Attachment("table", None, None)
    assert outline(parse("Text.\n\n<table>\n<tr><td>a\n\nno *end*")) == [("notes", ["Text.", "a", "no end"])]
    assert only("- item\n- <table><tr><th>A<th>B<tr><td>1<td>2</table>").text == "- item\n- A: 1; B: 2"


def test_a_header_that_is_left_empty_stands_over_the_tables_own():
    assert only("| | |\n|---|---|\n| Model | Power |\n| H100 | 700 |\n").text == "Model: H100; Power: 700"


def test_raised_characters_notes_and_deleted_text():
    text = (
        "10<sup>9</sup>, 1.58<sup>2</sup>, 10[<sup>9</sup>](#n), 10<a href='#n'><sup>9</sup></a>, "
        "CO<sub>2</sub>, 1.58[^b]\n"
        "and ~~old 5~~ new 6 <del>a *7*</del> <s>8</s>.\n\n[^b]: word\n[^c]: A note. It is\n  long.\n"
    )
    assert [part.text for part in parse(text).sections[0].paragraphs] == [
        "10^9, 1.58 [2], 10 [9], 10 [9], CO2, 1.58 [b] and new 6 .",
        "[b] word",
        "[c] A note. It is long.",
    ]
    assert only("| E (10<sup>9</sup>) | B |\n|---|---|\n| 0.3<sup>1</sup> | 2 |").text == "E (10^9): 0.3 [1]; B: 2"


def test_cells_beyond_the_header_of_a_table_are_kept():
    rows = ("| H100 | 700 W | 3,200 `$` | |", "| A100 | 400 W |", "| L4 | 72 W | a \\| b |")
    text = "\n".join(("# T", "", "| Model | Power |", "|---|---|", *rows))
    document = parse_file("x.md", text.encode())
    [paragraph] = document.sections[0].paragraphs
    assert paragraph.text.split("\n") == [
        "Model: H100; Power: 700 W; 3,200 $",
        "Model: A100; Power: 400 W",
        "Model: L4; Power: 72 W; a | b",
    ]


@check_rows(
    ("source", "text"),
    [
        ("It took $2\\frac{3}{4}$ hours.", "It took 2 3/4 hours."),
        ("Some 10^9^ units, H~2~O and 300 m^2^ here.", "Some 10^9 units, H2O and 300 m^2 here."),
        ("From a^b to c^d and 5~6 or 7~8.", "From a^b to c^d and 5~6 or 7~8."),
        ("It was 1.58[2](#fn2) in 2020.", "It was 1.58 [2] in 2020."),
        ("See section [2](#s2) there.", "See section 2 there."),
        (
            "\\begin{align}\nE &= 3.5 \\times 10^{5} \\\\\nC &= 0.42\n\\end{align}",
            "E = 3.5 × 10^5; C = 0.42",
        ),
    ],
)
def test_numbers_beside_scripts_fractions_and_links(source, text):
    (section,) = parse_file("x.md", source.encode()).sections
    assert [paragraph.text for paragraph in section.paragraphs] == [text]


GRID = """\
+-------+---------------+
| Model | Energy        |
|       +-------+-------+
|       | MWh   | kWh   |
+=======+=======+=======+
| A     | 10^9^ | 2     |
|       +-------+-------+
|       | 3     | 4     |
+-------+-------+-------+
| B     | none of them  |
+-------+---------------+"""


def test_a_table_drawn_with_borders():
    assert only(GRID).text.split("\n") == [
        "Model: A; Energy, MWh: 10^9; Energy, kWh: 2",
        "Model: A; Energy, MWh: 3; Energy, kWh: 4",
        "Model: B; Energy, MWh: none of them; Energy, kWh: none of them",
    ]
    assert sentences(only("+---+---+\n| a | 1 |\n+---+---+\n| b | 2 |\n+---+---+")) == ["a | 1", "b | 2"]


@pytest.mark.parametrize("drawn", [GRID.replace("10^9^ ", "10 "), GRID.rpartition("\n")[0]])
def test_a_drawing_that_is_no_table_stays_as_it_is(drawn):
    assert "".join(only(drawn).text.split()) == "".join(drawn.replace("10^9^", "10^9").split())


@pytest.mark.parametrize("mark", ["- ", "> "])
def test_text_below_the_deepest_nesting_is_kept(mark):
    """The library drops it: of 120 items 49 were read, of 160 quotes 99."""
    nested = "\n".join(f"{(mark if mark == '> ' else '  ') * i}{mark}It is {i}." for i in range(160))
    text = " ".join(
        part.text for section in parse_file("x.md", nested.encode()).sections for part in section.paragraphs
    )
    assert all(f"It is {i}." in text for i in range(160))


def test_front_matter_in_toml():
    """jdocmunch#60."""
    matter = b'+++\ntitle = "The plant"\ndate = 2024-02-29\ntags = ["a", "b"]\n+++\n'
    document = parse_file("x.md", matter + b"It used 31 GWh.\n")
    assert (document.title, document.metadata) == ("The plant", {"date": "2024-02-29", "tags": "a, b"})
    assert sentences(document.sections[0].paragraphs[0]) == ["It used 31 GWh."]
    with pytest.raises(DataError, match=r"x\.md: the front matter is not TOML: .*at line 1"):
        parse_file("x.md", b"+++\ntitle = The plant\n+++\nText.\n")
