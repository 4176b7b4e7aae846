import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.documents.lean_imports import nltk_module
from kohaku_ray.documents.text import sentences as module
from kohaku_ray.documents.text.sentences import MAX_CHARS, split_lines, split_sentences, whole_text


def sentences(text):
    return [text[span.start : span.end] for span in split_sentences(text)]


@check_rows(
    "text",
    [
        "It drew 3.14 kWh in total.",
        "About .5 W is lost.",
        "It was approx. 5 hrs. per run.",
        "As shown in [12]. and again below.",
        "It was measured.[12]",
        "Smith et al. (2021) found it.",
        "Smith et al. 2020 found it.",
        "See Fig. 3 and Figs. 4 and 5.",
        "As in Eq. (3), Sec. IV, Tab. A and App. B of it.",
        "shown in Fig.\n3 of the report",
        "Power fell, i.e. the meter slowed.",
        "Power fell, i.e. The Meter slowed.",
        "GPUs, e.g., A100 and H100.",
        "GPUs, e.g. A100 and H100.",
        "Old models vs. A100 baselines, cf. Table 2.",
        "The U.S. data centers grew.",
        "We use v1.2 here.",
        "It waited... then it ran.",
        "It waited... Then it ran.",
        "See https://a.org/x.y?z=1.2&q=A for it.",
        "Dr. Smith, Prof. Jones and J. R. R. Tolkien of St. Louis.",
        "[40] P. Henderson and J. Hu",
        "Acme Inc. Holdings and Acme Ltd. Partners.",
        "See No. 5 and pp. 3-5 of vol. 2, no. 7.",
        "On Jan. 5 it began.",
        "“Who is there?” asked the captain.",
        "1. Introduction",
        "[12]. Smith wrote it",
    ],
)
def test_does_not_split(text):
    assert sentences(text) == [text]


@check_rows(
    ("first", "second"),
    [
        ("It rose in 2023.", "The next year it fell."),
        ("It weighs 5 kg.", "The model is big."),
        ("It draws 300 W.", "Training took longer."),
        ("It ran for 3 h.", "GPUs were idle."),
        ("It emits 5 Mt.", "The total rose."),
        ("We show it in [12].", "The rest follows."),
        ("It is in the U.S.", "The plant is new."),
        ("As found by Smith et al.", "We show more."),
        ("GPUs, TPUs, etc.", "Models vary."),
        ("The answer is no.", "The rest is noise."),
        ("Use the app.", "Results come fast."),
        ("See Fig. 3.", "The rest is here."),
        ("Devices of class B.", "We use them."),
        ("It ended at 5 p.m.", "The rest followed."),
        ("See https://x.org.", "Next we go on."),
        ("It cost $3.5.", "Then it rose."),
        ("Is it so?", "Yes!"),
        ("We tested it.", "vLLM is fast."),
        ("“I will not stop.”", "He went on."),
        ("He cried (loudly!).", "Nobody came."),
        ("no capitals here.", "none here either."),
    ],
)
def test_splits_at_a_real_end(first, second):
    assert sentences(f"{first} {second}") == [first, second]


@check_rows(
    "expected",
    [  # pySBD#132, languagetool#5333, mediacloud/sentence-splitter#1
        ["Il entra.", "« Bonjour ! » dit-il.", "« Bonjour », dit-elle."],
        ["Sie näherte sich Louis.", "„Darf ich mitspielen?“, fragte sie schüchtern."],
        ["Si « cf. » désigne l’abréviation de « confer », il convient de l'écrire.", "Puis la suite."],
        ["(« BPP »), une filiale de Properties Inc. (« BOPI »), dont les actifs ont été transférés.", "Fin."],
    ],
)
def test_french_and_german_sentences_with_quotes_and_abbreviations(expected):
    assert sentences(" ".join(expected)) == expected


def test_chinese_full_stops_split_without_spaces():
    assert sentences("这是一。这是二。") == ["这是一。", "这是二。"]


@check_rows(
    ("text", "expected"),
    [
        ("One\n\nTwo", ["One", "Two"]),
        ("One\n \t\nTwo", ["One", "Two"]),
        ("Steps\n1. Foo\n2. Bar", ["Steps", "1. Foo", "2. Bar"]),
        ("Two things:\n- one\n- two", ["Two things:", "- one", "- two"]),
        ("Only this:\n- one", ["Only this:", "- one"]),
        ("Points\n• one\n• two", ["Points", "• one", "• two"]),
        ("a) one\nb) two", ["a) one", "b) two"]),
        ("[1] A report\n[2] A book", ["[1] A report", "[2] A book"]),
        ("as given in Table\n3. The rest", ["as given in Table\n3.", "The rest"]),
        ("the range of 4\n- 5 kWh", ["the range of 4\n- 5 kWh"]),
    ],
)
def test_blank_lines_and_list_items_split_but_wrapped_lines_do_not(text, expected):
    assert sentences(text) == expected


def test_a_dump_without_punctuation_is_cut_at_line_ends():
    line = "A100 400 312 " * 10
    text = "\n".join([line.strip()] * 100)
    pieces = sentences(text)
    assert len(pieces) > 5
    assert all(len(piece) <= MAX_CHARS for piece in pieces)
    assert all(row == line.strip() for piece in pieces for row in piece.split("\n"))


def test_a_long_line_is_cut_at_spaces_and_a_long_word_anywhere():
    words = sentences("number " * 1000)
    assert len(words) == 4
    assert all(word == "number" for piece in words for word in piece.split())
    assert [len(piece) for piece in sentences("x" * 4500)] == [2000, 2000, 500]


def test_lines_and_whole_texts_are_taken_as_they_are():
    text = "a: 1. B: 2\n\n  c: 3  \n"
    assert [text[s.start : s.end] for s in split_lines(text)] == ["a: 1. B: 2", "c: 3"]
    assert [text[s.start : s.end] for s in whole_text(text)] == ["a: 1. B: 2\n\n  c: 3"]
    assert whole_text(" \n") == split_lines("\n") == split_sentences("") == ()


PIECES = st.sampled_from(re.findall("[^|]+", "The |a|U.S.|Fig. |3|.5|. |? |! |...|“|”|\n|\n\n|- |1. |[2]| |kg.|。|\r"))


@pytest.mark.parametrize("split", [split_sentences, split_lines, whole_text])
@settings(max_examples=scaled(150))
@given(text=st.one_of(st.text(), st.lists(PIECES, max_size=60).map("".join), PIECES.map(lambda piece: piece * 2500)))
def test_spans_are_trimmed_ordered_bounded_and_lose_nothing(split, text):
    spans = split(text)
    behind = 0
    for span in spans:
        assert behind <= span.start < span.end <= len(text)
        assert span.end - span.start <= MAX_CHARS
        piece = text[span.start : span.end]
        assert piece == piece.strip()
        assert not text[behind : span.start].strip()
        behind = span.end
    assert not text[behind:].strip()


@settings(max_examples=scaled(100))
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["kWh", "W", "%", "t CO2e", "GPU-hours"]))
def test_a_decimal_with_a_unit_is_never_cut(whole, fraction, unit):
    text = f"The run used {whole}.{fraction} {unit} in all. Nothing else counted."
    assert sentences(text) == [f"The run used {whole}.{fraction} {unit} in all.", "Nothing else counted."]


WORDS = re.findall(r"[^|]+", "the|cat|sat|fig|al|no|Dr|U.S|etc|3|kg|A|J|[12]|2024|.|.|.|,|;|!|?|(see)|The|It|\n|\n\n")


@given(st.lists(st.sampled_from(WORDS)))
def test_skipping_plain_ends_changes_nothing_of_punkt(words):
    punkt = nltk_module("nltk.tokenize.punkt")
    parameters = punkt.PunktParameters()
    parameters.abbrev_types = set(module._ABBREVIATIONS)
    text = " ".join(words).replace(" .", ".").replace(" ;", ";")
    spans = list(punkt.PunktSentenceTokenizer(parameters).span_tokenize(text))
    assert list(module._punkt().span_tokenize(text)) == spans
