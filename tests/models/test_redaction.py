"""What is hidden in texts that hold a secret, however it is spelled."""

from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.models.redaction import Redaction

KEY = "sk-secret-0123456789"


@check_rows(
    ("text", "written"),
    [
        (f"a {KEY}, b {KEY}", "a [key], b [key]"),
        (f"a {KEY[:3]}\\u{ord(KEY[3]):04X}{KEY[4:]} b {KEY[:5]}\n{KEY[5:]}\\n", "a [key] b [key]\\n"),
        (r"a\nb \u0041 sk-secret-012345678", r"a\nb \u0041 sk-secret-012345678"),
        ("sk secret 0123456789", "sk secret 0123456789"),
        ("", ""),
    ],
)
def test_a_secret_is_hidden_and_all_else_stays(text, written):
    assert Redaction([KEY])(text) == written


@check_rows(
    "spelled",
    ["sk-Ab%2Fc%2Bd%3D%252F1", "sk-Ab%2fc%2bd%3d%252f1", "sk-Ab%252Fc%252Bd%253D%25252F1", "%73k-Ab/c+d=%2F1"],
)
def test_a_secret_in_a_url_is_hidden(spelled):  # 35.4
    said = f"GET /v1?key={spelled}&n=100%25 failed"
    assert Redaction(["sk-Ab/c+d=%2F1"])(said) == "GET /v1?key=[key]&n=100%25 failed"


ESCAPES = (r"\u001F", r"\uD800", r"\u007f", r"\u0085", r"\u009F", r"\u200b", r"\u0020", r"\u00a0", r"\u000A", r"\uFEFF")
UNSEEN = "\x00\xad\u180e\u2061\u202e\ufe0f\u3164"


@check_rows(
    "spelled",
    [
        "".join(f"\\u{ord(char):04x}" for char in KEY),
        "".join(f"\\u{ord(char):04X}" for char in KEY),
        KEY[:4] + f"\\u{ord(KEY[4]):04x}" + KEY[5:],
        KEY[:3] + f"\\\\u{ord(KEY[3]):04x}" + KEY[4:],  # JSON in JSON
        KEY.replace("-", "\\-"),
        *(KEY[:7] + between + KEY[7:] for between in (r"\u0000", r"\n", *ESCAPES, *UNSEEN)),
    ],
)
def test_a_secret_that_is_spelled_otherwise_is_hidden(spelled):
    text = '{"answer_value": "%s", "explanation": "as said"}'
    assert Redaction([KEY])(text % spelled) == text % "[key]"


def test_the_longest_of_several_secrets_is_hidden_first():
    assert Redaction(["abcdefgh", "abcdefgh-12", "", "clé-äöü"])("abcdefgh-12 abcdefgh clé-äöü") == "[key] [key] [key]"


@given(st.lists(st.sampled_from(["", "\\n", "\u200b", " ", "\ud800", "\\u0000"]), min_size=len(KEY)))
def test_no_reader_that_drops_what_cannot_be_seen_finds_the_key(between):
    text = "".join(char + gap for char, gap in zip(KEY, between, strict=False))
    hidden = Redaction([KEY])(f"x{text}y")
    assert hidden.startswith("x[key]")
    assert hidden.endswith("y")
