import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.pages.text import cut, visible, web_link


@check_rows(
    ("text", "shown"),
    [
        ("a\x00b\x1b", "a␀b␛"),
        ("\x7f\x9f", "[U+007F][U+009F]"),
        ("user\u202eexe.txt", "user[U+202E]exe.txt"),
        ("\u2066x\u2069", "[U+2066]x[U+2069]"),
        ("a\u2028b", "a\nb"),
        ("half \ud800", "half \ufffd"),
        ("\ufffe\ufeff", "[U+FFFE][U+FEFF]"),
        ("x\U000e0041", "x[U+E0041]"),
        ("tab\tline\nשלום émile 🦊", "tab\tline\nשלום émile 🦊"),
    ],
)
def test_what_acts_unseen_is_shown(text, shown):
    assert visible(text) == shown


@given(st.text(st.characters(), max_size=60))
def test_shown_text_can_be_written_and_is_shown_once(text):
    shown = visible(text)
    assert shown.encode().decode() == shown == visible(shown)


def test_a_cut_says_how_much_is_missing():
    assert cut("abcdef", 6) == "abcdef"
    assert cut("x" * 100_000, 10) == "xxxxxxxxxx … [99,990 more characters]"


@pytest.mark.parametrize(
    "url", ["https://example.org/a?b=c&d=(e)#f", " http://example.org ", "https://[::1]/x", "HTTPS://e.org/"]
)
def test_plain_web_addresses_become_links(url):
    assert web_link(url) == url.strip()


@check_rows(
    "url",
    [
        "",
        "javascript:alert(1)",
        "JaVaScRiPt://example.org/%0aalert(1)",
        "data:text/html,x",
        "//example.org",
        "https:///path",
        "file:///etc/passwd",
        'https://e.org/" onclick="x',
        "https://e.org/<b>",
        "https://e.org/a b",
        "java\nscript:x",
        "https://e.org/\u202egpj",
        "https://[bad",
        "https://e.org/" + "x" * 3000,
    ],
)
def test_other_addresses_do_not(url):
    assert web_link(url) == ""
