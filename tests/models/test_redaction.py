"""What is hidden in texts that hold a secret; `test_openai` tries every spelling on a server's replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.models.redaction import Redaction

KEY = "sk-secret-0123456789"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (f"a {KEY}, b {KEY}", "a [key], b [key]"),
        (f"a {KEY[:3]}\\u{ord(KEY[3]):04X}{KEY[4:]} b {KEY[:5]}\n{KEY[5:]}\\n", "a [key] b [key]\\n"),
        (r"a\nb \u0041 sk-secret-012345678", r"a\nb \u0041 sk-secret-012345678"),
        ("", ""),
    ],
)
def test_a_secret_is_hidden_and_all_else_stays(text, written):
    assert Redaction([KEY])(text) == written


def test_the_longest_of_several_secrets_is_hidden_first():
    assert Redaction(["abcdefgh", "abcdefgh-12", "", "clé-äöü"])("abcdefgh-12 abcdefgh clé-äöü") == "[key] [key] [key]"


@given(st.lists(st.sampled_from(["", "\\n", "\u200b", " ", "\ud800", "\\u0000"]), min_size=len(KEY)))
def test_no_reader_that_drops_what_cannot_be_seen_finds_the_key(between):
    text = "".join(char + gap for char, gap in zip(KEY, between, strict=False))
    hidden = Redaction([KEY])(f"x{text}y")
    assert hidden.startswith("x[key]")
    assert hidden.endswith("y")
