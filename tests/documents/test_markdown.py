"""Markdown beyond what cases/markdown.txt shows: front matter that is refused, and nesting without end."""

import pytest
from kit.rows import check_rows
from kit.trees import texts

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError


def parse(text):
    return parse_file("docs/notes.md", text.encode())


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


def test_bad_front_matter_in_toml_is_named():
    with pytest.raises(DataError, match=r"notes\.md: the front matter is not TOML: .*at line 1"):
        parse("+++\ntitle = The plant\n+++\nText.\n")


def test_merges_that_double_a_mapping_are_refused():
    lines = ["a0: &a0 {k: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 60))]
    with pytest.raises(DataError, match="a mapping has 2,048 keys, at most 2,000 are allowed"):
        parse("\n".join(["---", *lines, "---", "Text."]))


@pytest.mark.parametrize("mark", ["- ", "> "])
def test_a_file_nested_deeper_than_the_library_reads_is_refused(mark):
    """The library drops what is below: of 120 items 49 were read, of 160 quotes 99."""

    def nested(n):
        return "\n".join(f"{(mark if mark == '> ' else '  ') * i}{mark}It is {i}." for i in range(n))

    text = " ".join(texts(parse(nested(40))))
    assert all(f"It is {i}." in text for i in range(40))
    with pytest.raises(DataError, match=r"docs/notes\.md has more than 100 blocks within each other: flatten it"):
        parse(nested(160))


@pytest.mark.parametrize("tag", ["<object>", "<title>", "<T>", "<Install path>"])
def test_a_tag_that_is_no_texts_is_text(tag):
    """As HTML it would hide what follows: ``List<object>``; libdecaf's README says ``<Install path>``."""
    assert texts(parse(f"Returns List{tag} of 5 MW.\n\n- Next item\n\nLast *one*.")) == [
        f"Returns List{tag} of 5 MW.", "- Next item", "Last one."
    ]  # fmt: skip
