import pytest

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError


def parse(text):
    return parse_file("docs/rows.csv", text.encode())


def test_rows_become_paragraphs_and_runs_of_rows_sections():
    document = parse(
        "\ufeffDoc_ID,title,section,page,Text,url,score\n"
        'd7,A Title,Intro,1,"One, two.\nThree.",https://x.org,1\n'
        "\n"
        ",,Intro,2,Four.,https://x.org,2\n"
        "d7,,,2,Five.,,\n"
        "d7,,Intro,,  ,,\n"
        "d7,,Intro,3,Six.,,\n"
    )
    assert (document.doc_id, document.title) == ("d7", "A Title")
    assert document.metadata == {"url": "https://x.org"}
    assert [(s.title, s.page, [(p.text, p.page) for p in s.paragraphs]) for s in document.sections] == [
        ("Intro", 1, [("One, two.\nThree.", 1), ("Four.", 2)]),
        ("A Title", 2, [("Five.", 2)]),
        ("Intro", 3, [("Six.", 3)]),
    ]
    assert [(s.start, s.end) for s in document.sections[0].paragraphs[0].sentences] == [(0, 9), (10, 16)]


def test_a_text_column_is_enough():
    document = parse("text\r\nOne.\r\n")
    assert (document.doc_id, document.title, document.sections[0].title) == ("rows", "rows", "rows")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'text,page\n"a\nb",1\nc\n',
            "docs/rows.csv: line 4 has 1 cells, the header has 2: put texts with commas or line breaks in",
        ),
        ("text,page\na,b,1\n", "docs/rows.csv: line 2 has 3 cells, the header has 2: put texts with commas"),
        ("body,page\na,1\n", "docs/rows.csv lacks the column text; its columns are 'body', 'page': rename the column"),
        ("text,text\na,b\n", "docs/rows.csv has two columns called 'text': rename or remove one."),
        (
            "doc_id,text\na,x\nb,y\n",
            "docs/rows.csv holds several documents: doc_id is 'a', then 'b' at line 3: write one file per document.",
        ),
        ("text,page\na,iv\n", "docs/rows.csv: line 2: page is 'iv', expected a whole number from 0 to 2147483647."),
        ('text\n"a\n', "docs/rows.csv: line 2 is not CSV (unexpected end of data at line 2): quote texts"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(text, message):
    with pytest.raises(DataError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


def test_a_cell_beyond_the_libraries_usual_limit_is_read():
    assert len(parse("text\n" + "word " * 40_000).sections[0].paragraphs[0].text) == 199_999
