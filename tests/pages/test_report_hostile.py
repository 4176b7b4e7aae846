"""Pages of hostile text: it is shown, and does nothing."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.properties import scaled
from pages import Tags, check_harmless, page_of, plain
from run_files import FACTS, answer, ballot, index, item, match, small_run, usage, write_run, write_truth

BAD = "<script>alert(1)</script>\"' onerror=x \u202e\x00{{ 7*7 }}</td></style>"
SHOWN = "<script>alert(1)</script>\"' onerror=x [U+202E]␀{{ 7*7 }}</td></style>"


def hostile_run(path, text, url="javascript:alert(1)"):
    question_id = text.replace("\0", "")  # a NUL is refused in an id
    given = [
        answer(question_id, member, text, (text,), answer=text, explanation=text, reply=text, error=text)
        | {"measures": {text: 1.5}, "details": text}
        for member in range(2)
    ]
    facts = FACTS | {
        "system": "<img src=x onerror=alert(1)>",
        "models": {text: [text]},
        "lead": text,
        "baselines": [text],
    }
    return write_run(
        path,
        [(ballot(question_id, text, given) | {"asked_unit": text, "answer_unit": text}, given)],
        trace=[
            item(question_id, text, text=text, error=text, doc_id=text, note=text),
            match(
                question_id, text=text, node_id=f"{text}:sec0:p0", doc_id=text, kind=text, note=text, scores={text: 1.0}
            ),
        ],
        calls=[usage(question_id, 0)],
        facts=facts,
        urls={text: url},
    )


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", 'https://e.org/" onmouseover="x', "data:text/html,<script>x</script>"]
)
def test_hostile_text_is_shown_and_does_nothing(tmp_path, url):
    truth = write_truth(tmp_path / "truth.csv", (BAD.strip().replace("\0", ""), BAD, [BAD]))
    page = page_of(hostile_run(tmp_path / "run", BAD, url), truth)
    check_harmless(page)
    text = Tags(page).text
    assert text.count(SHOWN) >= 12
    assert "\x00" not in page
    assert "\u202e" not in page
    assert "<img src=x onerror=alert(1)>" in text
    assert not [a for t, a in Tags(page).tags if t == "a" and not a["href"].startswith("#")]


@settings(max_examples=scaled(5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            ["<", ">", '"', "'", "&", "`", "=", "</script>", "<!--", "]]>", "\\1", "$", "\x00", "\r\n", "\u202e", "é"]
        ),
        min_size=1,
        max_size=12,
    ).map("".join)
)
def test_no_text_opens_a_tag(tmp_path, text):
    check_harmless(page_of(hostile_run(tmp_path / "run", f"x{text}", text)))


def test_hostile_documents_are_escaped_in_the_index_too(tmp_path):
    text = f"{BAD} stands first. The hall drew 41 MW in May."
    run = small_run(tmp_path / "run", trace=[match("q1", text=text, node_id="a2024:sec0:p0", kind="paragraph")])
    index(run / "index", "a2024", title=BAD, text=text)
    page = page_of(run)
    check_harmless(page)
    assert f"{SHOWN} › Load › paragraph 0" in plain(page)
    assert f"{SHOWN} stands first." in Tags(page).text


def test_a_text_of_100_kb_is_cut_with_a_note(tmp_path):
    page = page_of(hostile_run(tmp_path / "run", "<" + "word " * 20_000))
    assert len(page) < 200_000
    assert "more characters]" in page
    check_harmless(page)
