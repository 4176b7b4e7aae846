import pytest
from kit.growth import check_linear
from kit.rows import check_rows
from kit.trees import outline, sentences, texts

from kohaku_ray.documents.markup.html import MAX_BYTES
from kohaku_ray.documents.model import Attachment
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError


def parse(text):
    return parse_file("site/page.html", text if isinstance(text, bytes) else text.encode())


def body(text):
    return texts(parse(text))


def test_headings_make_sections_and_the_head_makes_metadata():
    document = parse(
        """<!doctype html><html><head><title>Energy Report | The Site</title>
        <meta name=description content=" What we  used. "><meta property="article:published_time" content=2024-05-01>
        <meta name=author content="A. Author"><link rel=canonical href="https://x.org/r"></head><body>
        <h1>Energy Report</h1><p>First.<p>Second &amp; last.</p>
        <h2>Results</h2><h3>Power</h3><p>Much &mdash; <b>very</b> much.</p><h3>Water</h3>Some.
        <h2>End</h2><div>It is.</div>
        """
    )
    assert (document.doc_id, document.title) == ("page", "Energy Report")
    assert document.metadata == {
        "description": "What we used.",
        "author": "A. Author",
        "date": "2024-05-01",
        "url": "https://x.org/r",
    }
    assert outline(document) == [
        ("Energy Report", ["First.", "Second & last."]),
        ("Results › Power", ["Much — very much."]),
        ("Results › Water", ["Some."]),
        ("End", ["It is."]),
    ]


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("<title>A</title><h1>B</h1>x", "A"),
        ("<title>B - Site</title><h1>B</h1>x", "B"),
        ("<h1>B</h1>x<h1>C</h1>y", "B"),
        ("<p>x", "page"),
    ],
)
def test_the_title(source, title):
    assert parse(source).title == title


TURNS = (
    "<a name=here></a><div class=header><p>\nNext: <a href=x accesskey=n rel=next>NO and NO</a>, "
    "Previous: <a href=x rel=prev>NO</a>, Up: <a href=x rel=up>NO</a>"
    " &nbsp; [<a href=x rel=contents>NO</a>][<a href=x rel=index>NO</a>]</p></div>"
)
"""Links to a manual's other pages, as Texinfo writes them."""


@check_rows(
    "hidden",
    [
        "<script>NO</script>",
        "<style>NO</style>",
        "<nav>NO</nav>",
        "<footer>NO</footer>",
        "<template>NO</template>",
        "<noscript>NO</noscript>",
        "<div hidden>NO</div>",
        "<div style='color: red; display : none'><p>NO</p></div>",
        "<ul role=navigation><li>NO</ul>",
        "<header><a href=/>NO</a><p>NO</header>",
        "<aside><h2>NO</h2><p>NO</aside>",
        "<div role=complementary>NO</div>",
        f"<ul>{'<li><a href=x>NO</a>' * 5}</ul>",
        f"<p>{'<a href=x>NO</a> | ' * 5}",
        "<div><a href=x>NO</a></div>" * 5,
        f"<table><tr><td>{'<td><a href=x>NO</a>' * 6}</table>",
        TURNS,
        "<a id=Top></a><div class=nav-panel><p>\nUp: <a href=x accesskey=u rel=up>NO</a> &nbsp; </p></div>",
        "<button>NO</button>",
        "<!-- NO -->",
        "<svg><text>NO</text></svg>",
    ],
)
def test_what_a_reader_does_not_see_is_dropped(hidden):
    assert body(f"<p>One.</p>{hidden}<p>Two.</p>") == ["One.", "Two."]


def test_what_belongs_to_an_article_or_is_all_there_is_stays():
    links = "".join(f"<li><a href=x>Country {i}</a>" for i in range(6))
    listed = "\n".join(f"- Country {i}" for i in range(6))
    article = f"<article><header><h1>Title</h1><p>By A.</header><p>Text.<aside>Note.</aside><ul>{links}</ul></article>"
    assert body(f"<ul>{links}</ul>{article}") == ["By A.", "Text.", "Note.", listed]
    assert body(f"<ul>{links}</ul>") == [listed]
    assert body("<aside>All there is.</aside>") == ["All there is."]
    assert body("<header><h1>Title</h1><p>A lead.</header><p>Text.") == ["A lead.", "Text."]
    few = "<p>See <a href=x>this</a>, <a href=y>that</a> and what <a href=z>others</a> have said of it.</p>"
    assert body(few) == ["See this, that and what others have said of it."]
    turn = "<p>How they are written is <a href=x rel=next>the next chapter</a>, with examples.</p>"
    assert body(turn) == ["How they are written is the next chapter, with examples."]


def test_no_paragraph_is_lost_below_links_that_turn_pages():
    rels = ("next", "prev", "up", "contents", "index")
    turns = " ".join(f'<a href="#{rel}" rel="{rel}">{rel} page</a>' for rel in rels)
    told = [f"Paragraph {n} says that the mean was {100 * n} units in that year." for n in range(200)]
    chapters = (
        f"<div><p>{turns}</p></div><h2>{i}</h2>" + "".join(f"<p>{text}</p>" for text in told[i : i + 5])
        for i in range(0, 200, 5)
    )
    assert body("".join(chapters)) == told
    assert body("<p>Next: <a href=x rel=next>All there is</a></p>") == ["Next: All there is"]
    long = "".join(f"<li><a href=x>A title of a paper of more than some words, number {i}</a>" for i in range(6))
    assert len(body(f"<p>Papers:<ul>{long}</ul>")) == 2


def test_a_long_list_is_paragraphs_of_whole_items():
    items = [f"Step {i}: {'do what has to be done ' * 12}" for i in range(1, 41)]
    paragraphs = body(f"<ol>{''.join(f'<li>{item}' for item in items)}</ol>")
    assert "\n".join(paragraphs) == "\n".join(f"{i}. {item.strip()}" for i, item in enumerate(items, 1))
    assert 1500 < len(paragraphs[0]) <= 2000
    assert max(map(len, paragraphs)) <= 2000
    assert len(body(f"<ul><li>{'x ' * 3000}<li>b</ul>")) == 2


def test_lists_are_one_paragraph_with_markers_and_indent():
    source = "<p>Before:<ul><li>One.<li>Two:<ol start=3><li>a</li><li><p>b</p></li></ol><li>Three.</ul>After."
    assert body(source) == ["Before:", "- One.\n- Two:\n  3. a\n  4. b\n- Three.", "After."]


def test_a_table_is_one_paragraph_a_row_a_sentence():
    (section,) = parse(
        """<table><caption>Power</caption><thead><tr><th>System<th colspan=2>Energy (MWh)</thead>
        <tr><td rowspan=2>Alpha<td>1,220<td>3<tr><td>310<td><tr><td>Beta<td colspan=2>none</table>"""
    ).sections
    (table,) = section.paragraphs
    assert sentences(table) == [
        "Power",
        "System: Alpha; Energy (MWh): 1,220; Energy (MWh): 3",
        "System: Alpha; Energy (MWh): 310",
        "System: Beta; Energy (MWh): none",
    ]
    assert table.attachment == Attachment("table", None, "Power")


def test_a_table_without_header_is_joined_by_bars_and_one_for_layout_is_prose():
    assert body("<table><tr><td>a<td>b<tr><td>c<td>d</table>") == ["a | b\nc | d"]
    long = "Many words. " * 50
    assert body(f"<table><tr><td>Menu<td>{long}</table>") == ["Menu", long.strip()]


def test_images_with_captions_and_code():
    (section,) = parse(
        """<figure><img src=a.png alt=Bars><figcaption>Figure 1. Power <i>by</i> hour.</figcaption></figure>
        <p>Text with an <img src=i.gif> icon.</p><img src=b.png alt="A map"><pre>if x:\n    y  = 1\n</pre>"""
    ).sections
    figure, text, image, code = section.paragraphs
    assert figure.attachment == Attachment("image", "a.png", "Figure 1. Power by hour.")
    assert figure.text == "Figure 1. Power by hour."
    assert text.text == "Text with an icon."
    assert (image.text, image.attachment.path) == ("A map", "b.png")
    assert code.text == "if x:\n    y  = 1"


def test_breaks_entities_powers_and_unclosed_tags():
    assert body("<div>One<br>two &lt;3&nbsp;kW<div>10<sup>6</sup> H<sub>2</sub>O <b>bold<p>next</div>end") == [
        "One\ntwo <3 kW",
        "10^6 H2O bold",
        "next",
        "end",
    ]


@check_rows(
    "data",
    [
        '<meta charset="windows-1252"><p>Café – 3 €'.encode("cp1252"),
        "<meta charset=iso-8859-1><p>Café – 3 €".encode("cp1252"),
        '<meta http-equiv=Content-Type content="text/html; charset=utf-8"><p>Café – 3 €'.encode(),
        "<meta charset=latin1><p>Café – 3 €".encode("utf-8-sig"),
        "<p>Café – 3 €".encode("utf-16"),
    ],
)
def test_the_charset_is_the_files_own(data):
    assert body(data) == ["Café – 3 €"]


def test_an_unknown_charset_is_named():
    with pytest.raises(
        DataError, match=r"page\.html says its charset is 'klingon', which is unknown: save it as UTF-8"
    ):
        parse("<meta charset=klingon><p>x")


def test_a_page_that_is_too_large_states_both_numbers():
    with pytest.raises(DataError, match=r"has 67,108,865 bytes, at most 67,108,864 are allowed: split it into files"):
        parse(b" " * MAX_BYTES + b"x")


@pytest.mark.parametrize("tags", ["<div>", "<b class=x>", "<table><td>", "<p>So <math><mrow>"])
def test_tags_open_without_end_are_refused_at_once(tags):
    def refused(source):
        with pytest.raises(DataError, match=r"page\.html is nested too deep: more than 2,000 tags are open at a time"):
            parse(source)

    check_linear(lambda n: tags * n + "x", refused, n=25_000)


def in_tex(tex):
    return f"<annotation encoding='application/x-tex'>{tex}</annotation>"


@pytest.mark.parametrize(
    ("formula", "value", "n"),
    [
        (lambda n: "<mi>x</mi><mo>+</mo><mn>713</mn><mo>=</mo>" * n, "713", 2_000),
        (lambda n: "<msup><mn>10</mn><mn>9</mn></msup><mo>+</mo>" * n, "10^9", 2_000),
        (lambda n: f"<mfrac>{'<mn>713</mn><mo>,</mo>' * n}</mfrac>", "713", 12_000),
        (lambda n: f"<mtable>{'<mtr><mtd><mn>713</mn></mtd></mtr>' * n}</mtable>", "713", 2_000),
        (lambda n: f"{'<mrow>' * 1900}<mn>10</mn><mn>713</mn>{'</mrow>' * 1900}<mo>+</mo>" * n, "10 713", 4),
        (lambda n: f"{'<msqrt>' * 1900}<mn>713</mn>{'</msqrt>' * 1900}<mo>+</mo>" * n, "713", 4),
        (lambda n: in_tex("713 + " * n), "713", 10_000),
        (lambda n: in_tex("10^{713" * n + "}" * n), "10^{713", 10_000),
        (lambda n: in_tex("713^" + "\\sqrt " * n), "713", 10_000),
    ],
)
def test_a_formula_of_100_000_nodes_keeps_its_numbers_and_takes_linear_time(formula, value, n):
    def read(formula):
        text = "\n".join(body(f"<p>So <math>{formula}</math> holds."))
        assert text.count(value) == formula.count("713" if "713" in value else "10")
        assert text.startswith("So ")
        assert text.endswith(" holds.")

    check_linear(formula, read, n)


def test_nesting_that_is_allowed_is_read():
    assert body("<div>" * 1900 + "Deep." + "</div>" * 1900) == ["Deep."]
    assert body("<p>a<li>b<td>c" * 3000)[0] == "a"


@pytest.mark.slow
def test_12_mb_take_linear_time():
    line = "<p>Some words of text, <b>bold</b> ones among them, that fill a line of the page.</p>\n"

    def read(source):
        assert len(parse(source).sections[0].paragraphs) == source.count("\n")

    check_linear(lambda n: line * n, read, n=37_500)


STACKED = "Model: GPT-3; Energy, MWh: 1,287; Energy, kWh per query: 0.3 [1]"
VALUES = "<tr><td>GPT-3<td>1,287<td>0.3<sup>1</sup>"


@pytest.mark.parametrize(
    "table",
    [
        f"<tr><th rowspan=2>Model<th colspan=2>Energy<tr><th>MWh<th>kWh per query{VALUES}",
        f"<tr><td rowspan=2>Model<td colspan=2>Energy<tr><td>MWh<td>kWh per query{VALUES}",
        f"<tr><td><td colspan=2>Energy<tr><td>Model<td>MWh<td>kWh per query{VALUES}",
        f"<thead><tr><td rowspan=2>Model<td colspan=2>Energy<tr><td>MWh<td>kWh per query</thead>{VALUES}",
    ],
)
def test_the_rows_of_a_header_are_joined(table):
    assert body(f"<table>{table}</table>") == [STACKED]
    assert texts(parse_file("x.md", f"Text.\n\n<table>\n\n{table}\n</table>\n".encode())) == ["Text.", STACKED]


def test_spans_are_filled_and_no_value_is_lost():
    head = "<table><tr><th>Model<th>MWh<th>kWh"
    assert body(
        f"{head}<tr><td rowspan=2>A<td>1<td>2<tr><td colspan=2>3<tr><td colspan=3>Large<tr><td>B<td>4<td>5<td>6"
    ) == ["Model: A; MWh: 1; kWh: 2\nModel: A; MWh: 3; kWh: 3\nLarge\nModel: B; MWh: 4; kWh: 5; 6"]
    assert body(f"{head}<tr><td>A<td>1<td>2<tr><th>Model<th>t<th>kg<tr><td>B<td>3<td>4</table>") == [
        "Model: A; MWh: 1; kWh: 2\nModel: B; t: 3; kg: 4"
    ]
    assert body("<table><tr><th>Country<th>2020<th>2021<tr><td>France<td>5<td>6</table>") == [
        "Country: France; 2020: 5; 2021: 6"
    ]
    assert body("<table><tr><th>PUE<td>1.12<tr><th>WUE<td>1.8</table>") == ["PUE: 1.12\nWUE: 1.8"]


def test_a_table_in_a_table_keeps_its_names():
    inner = "<table><tr><th>Model<th>Power<tr><td>H100<td>700 W</table>"
    assert body(f"<table><tr><td>Site A {inner}<td>Site B <table><tr><td>x</table></table>") == [
        "Site A | Site B x",
        "Model: H100; Power: 700 W",
    ]


def test_overlapping_spans_are_bounded():
    def read(rows):
        (text,) = body(f"<table>{rows}</table>")
        assert text.count("x") == rows.count("x")

    check_linear(lambda n: "<tr><td colspan=100 rowspan=100>x<td>y" * n, read, n=500)
    assert body("<table><tr><th>A<th>B<th>C<tr><td>1<td rowspan=2>2<td>3<tr><td colspan=2>4<td>5</table>") == [
        "A: 1; B: 2; C: 3\nA: 4; B: 4; C: 5"
    ]


def test_raised_and_lowered_characters_follow_the_one_rule():
    link = '<a href="#fn1"><sup>1</sup></a>'
    assert body(
        f"<p>1.58<sup>2</sup> and 10<sup><i>9</i></sup>, m<sup>2</sup>, CO<sub>2</sub>, 21<sup>st</sup>, 10{link}."
    ) == ["1.58 [2] and 10^9, m^2, CO2, 21st, 10 [1]."]
    assert body(
        '<p>A word<sup class=reference><a href="#c">[1]</a></sup>, 10⁹, 1.58²</p><pre>10<sup>9</sup></pre>'
    ) == [
        "A word [1], 10^9, 1.58 [2]",
        "10^9",
    ]
    table = "<table><tr><th>Cost<sup>a</sup><th>m<sup>2</sup><tr><td>0.3<sup>1</sup><td>5</table>"
    assert body(f"<h1>10<sup>9</sup> W</h1><p>x{table}") == ["x", "Cost [a]: 0.3 [1]; m^2: 5"]


def test_a_term_stands_with_its_definition_and_deleted_text_is_dropped():
    assert body("<dl><dt>PUE</dt><dd>1.12</dd><dt>A<dt>B:<dd>one<dd>two<dt>last</dl>") == [
        "PUE: 1.12",
        "A, B: one",
        "two",
        "last",
    ]
    assert body("<dl><dt>Parts<dd><ul><li>a<li>b</ul><dt>Code<dd><pre>x</pre></dl>") == [
        "Parts",
        "- a\n- b",
        "Code",
        "x",
    ]
    assert body("<ul><li><dl><dt>PUE<dd>1.12</dl></ul>") == ["- PUE: 1.12"]
    assert body("<p><del>5</del><s>6</s><strike>7</strike><i style='text-decoration:line-through'>8</i> 9") == ["9"]


@check_rows(
    ("inner", "text"),
    [
        ("1.58<a role=doc-noteref href='#n2'>2</a> in 2020", "1.58 [2] in 2020"),
        ("1.58<a class=footnote-ref href='#fn2'>[2]</a> in 2020", "1.58 [2] in 2020"),
        ("45%<a href='#n3'>3</a> of it", "45% [3] of it"),
        ("1,287<a href='#a'>a</a> MWh", "1,287 [a] MWh"),
        ("see section <a href='#s2'>2</a> there", "see section 2 there"),
        ("the API<a href='#s'>s</a> there", "the APIs there"),
        ("1.58<span style='vertical-align: super; font-size: 70%'>2</span> in", "1.58 [2] in"),
        ("5 × 10<font style='VERTICAL-ALIGN:super'>9</font> FLOPs", "5 × 10^9 FLOPs"),
        ("CO<span style='vertical-align:sub'>2</span> of it", "CO2 of it"),
        ("10 <sup>9</sup> units", "10^9 units"),
    ],
)
def test_marks_and_powers_without_a_tag_of_their_own_stay_out_of_numbers(inner, text):
    assert body(f"<p>It was {inner}.</p>") == [f"It was {text}."]


def test_cells_and_rows_by_their_roles_are_a_table():
    source = (
        "<div role=table><div role=row><span role=columnheader>Model</span><span role=columnheader>MWh</span></div>"
        "<div role=row><span role=cell>A1</span><span role=cell>1,287</span></div></div>"
    )
    assert body(source) == ["Model: A1; MWh: 1,287"]


def test_a_cell_that_spans_rows_without_a_number_ends_with_its_group():
    source = (
        "<table><tr><th>Year<th>Model<th>MWh</tr><tbody><tr><td rowspan=0>2020<td>A<td>12<tr><td>B<td>13</tbody>"
        "<tbody><tr><td>2021<td>C<td>14</table>"
    )
    rows = ["Year: 2020; Model: A; MWh: 12", "Year: 2020; Model: B; MWh: 13", "Year: 2021; Model: C; MWh: 14"]
    assert body(source) == ["\n".join(rows)]


@pytest.mark.parametrize("prefix", ["m", "mml"])
def test_mathml_with_a_prefix(prefix):
    formula = "<math><mn>4</mn><mo>×</mo><msup><mn>10</mn><mn>8</mn></msup></math>"
    formula = formula.replace("</", "<//").replace("<", f"<{prefix}:").replace(f"<{prefix}://", f"</{prefix}:")
    assert body(f"<p>It has {formula} parts.") == ["It has 4 × 10^8 parts."]


def test_a_fraction_behind_a_number_is_no_part_of_it():
    assert body("<p>In <math><mn>2</mn><mfrac><mn>3</mn><mn>4</mn></mfrac></math> hours.") == ["In 2 3/4 hours."]


def test_tex_within_a_math_tag_as_marker_writes_it():
    assert body("<p>It has <math display=inline>1.3 \\times 10^9</math> parts.") == ["It has 1.3 × 10^9 parts."]


def test_an_item_has_the_number_that_it_gives_itself():
    assert body("<ol><li>a<li value=5>b<li>c</ol>") == ["1. a\n5. b\n6. c"]


def test_a_term_in_a_paragraph_of_its_own_is_a_term():
    assert body("<dl><dt><p>PUE</p></dt><dd><p>1.12</p></dd><dt><div>WUE</div><dd>0.2</dl><p>After.") == [
        "PUE: 1.12",
        "WUE: 0.2",
        "After.",
    ]


def test_the_mark_of_a_note_is_no_mass():
    assert body(
        "<p><sup>1</sup>A study.<p><sup>12</sup>C. Smith says.<p><sup>3</sup>He says.<p><sup>9</sup>In it."
    ) == [
        "[1] A study.",
        "[12] C. Smith says.",
        "[3] He says.",
        "[9] In it.",
    ]


def test_a_name_over_two_rows_beside_one_with_a_unit_below():
    table = "<table><tr><th rowspan=2>Model<th>Energy<tr><th>(MWh)<tr><td>A<td>12<tr><td>B<td>13</table>"
    assert body(table) == ["Model: A; Energy, (MWh): 12\nModel: B; Energy, (MWh): 13"]


@check_rows(
    ("inner", "text"),
    [
        ("1.2<sup>+0.3</sup><sub>−0.2</sub> units", "1.2 +0.3 -0.2 units"),
        ("1.2<sub>−0.2</sub><sup>+0.3</sup> units", "1.2 -0.2 +0.3 units"),
        ("$1.2^{+0.3}_{-0.2}$ units", "1.2 +0.3 -0.2 units"),
        ("10<sup>&minus; 9</sup> s", "10^-9 s"),
        ("5 Mm<sup>3</sup> of gas", "5 Mm^3 of gas"),
        ("10<sup>+3</sup> units of SO<sub>4</sub><sup>2−</sup>", "10^+3 units of SO4^2-"),
    ],
)
def test_tolerances_and_signs_stay_out_of_the_number_before_them(inner, text):
    assert body(f"<p>It was {inner} here.") == [f"It was {text} here."]


def test_terms_with_pictures_in_an_index_are_kept():
    terms = "".join(f"<dt><a href='#{i}'>term {i}</a><a href='#x'>, <img alt='[*]' src='x.png'></a>" for i in range(9))
    assert all(f"term {i}" in "\n".join(body(f"<h1>Index</h1><dl>{terms}</dl>")) for i in range(9))


def test_rows_that_begin_with_their_own_names_name_no_columns():
    """HilbertRaum#479."""
    rows = "<tr><th>Site</th><td>Oslo</td></tr><tr><th scope=row>Power</th><td>5 MW</td></tr>"
    (paragraph,) = parse_file("x.html", f"<table>{rows}</table>".encode()).sections[0].paragraphs
    assert paragraph.text == "Site: Oslo\nPower: 5 MW"


def test_what_screen_readers_alone_skip_is_kept():
    """markdownload#44, trafilatura#573: an answer below a button that opens it."""
    page = "<button>How much?</button><div aria-hidden=true><p>It used 31 GWh.</p></div>"
    assert body(page) == ["It used 31 GWh."]


@pytest.mark.parametrize(
    ("page", "n_hidden"),
    [
        ("<p>It used 31 GWh.<p style='display:none'>Say 99.<p hidden>Say 98.<p hidden> ", 2),
        ("<p>It used 31 GWh.<span style='color: #FFF'> Say 99.</span>", 1),
        ("<body style='background:#000'><p style='color:white'>It used 31 GWh.", 0),
    ],
)
def test_what_no_reader_sees_is_left_out_and_counted(page, n_hidden):
    document = parse_file("x.html", page.encode())
    assert [part.text for section in document.sections for part in section.paragraphs] == ["It used 31 GWh."]
    assert document.dropped == ((f"{n_hidden} hidden element{'s' * (n_hidden > 1)}",) if n_hidden else ())
