"""Stories, their book, what is searched and what the rules find, without a model."""

import pickle

import pytest
from systems.narrative.stories import PRISON, nodes, prepared, rows_of, stories, tools_for

from kohaku_ray.errors import KohakuRayError
from kohaku_ray.records import Question
from kohaku_ray.systems.narrative import SYSTEM, uses
from kohaku_ray.systems.narrative.questions import MOST_CLAUSES, Story, match_book, named, story_of, unaccent
from kohaku_ray.systems.narrative.settings import NarrativeSettings
from kohaku_ray.systems.questions import read_questions

STORIES = stories()
BOOK = "The Prisoner of the Rock"


def story(content="He slept.", character="Anton Varga", book=BOOK, caption=""):
    return Question("1", content, columns={"book_name": book, "char": character, "caption": caption})


# ---- columns


def test_ids_are_kept_labels_are_left_out_and_a_caption_may_be_missing():
    assert list(STORIES) == ["46", "137", "007", "9", "10"]
    assert all(set(one.columns) == {"book_name", "char", "caption"} for one in STORIES.values())
    (one,) = read_questions("t.csv", b"id,book_name,char,content\n1,B,C,text\n", columns=SYSTEM.columns)
    assert story_of(one) == Story("text", "C", "B", "")


# ---- what is searched


def test_clauses_end_where_sentences_and_subclauses_do():
    content = (
        "Born in Oran, he fled; at ten he stole bread, and the judge, who was kind, let him go. Alone. He wept — hard."
    )
    assert Story(content, "", "", "").clauses == (
        "Born in Oran, he fled;",
        "at ten he stole bread",
        "and the judge",
        "who was kind, let him go. Alone. He wept hard.",
    )


def test_queries_are_clauses_then_the_story_with_its_character_then_the_caption():
    one = Story("He ran away. She stayed at home.", "Tom Ayrton/Ben Joyce", "B", "The Mutiny")
    assert one.queries(with_character=True) == (
        ("He ran away.", "clause"),
        ("She stayed at home.", "clause"),
        ("Tom Ayrton Ben Joyce He ran away. She stayed at home.", "story"),
        ("The Mutiny", "caption"),
    )
    assert one.queries(with_character=False)[2] == (one.content, "story")


def test_a_story_of_ten_thousand_words_has_few_queries_that_lose_no_word():
    content = " ".join(f"On day {n} he walked to town{n} and back." for n in range(1250))
    one = Story(content, "Anton", BOOK, "")
    assert len(one.clauses) <= MOST_CLAUSES
    assert " ".join(one.clauses).split() == content.split()


@pytest.mark.parametrize(("n_words", "k"), [(19, 10), (20, 11), (100, 15), (400, 30), (10_000, 30)])
def test_adaptive_k(n_words, k):
    content = " ".join(["word"] * n_words)
    assert (NarrativeSettings().excerpts(content), NarrativeSettings(k=15).excerpts(content)) == (k, 15)


def test_the_declared_depth_covers_every_search():
    tools = tools_for()
    prepared(STORIES["46"], tools)
    deepest = uses(NarrativeSettings()).views
    for name, view, *_, top_k in (call for call in tools.asked if call[0] in ("search", "lexical")):
        assert top_k <= getattr(deepest[view], "dense" if name == "search" else "lexical")
    assert uses(NarrativeSettings(stages=1)).roles == ("search",)
    assert uses(NarrativeSettings(k=7)).views["chunks"].lexical == 7


# ---- the book


def test_an_unknown_book_is_an_error_that_lists_the_known_ones():
    with pytest.raises(
        KohakuRayError, match=r"story 1: book_name is '', but the index has 'The Pris.*The Garden'"
    ) as e:
        prepared(story(book=""))
    assert type(e.value) is KohakuRayError  # one row in error: DataError and ConfigError would end the run


@pytest.mark.parametrize(
    ("over", "place"), [("section", ("CHAPTER III. THE LAMP", 75.0)), ("document", ("The Prisoner of the Rock", None))]
)
def test_excerpts_know_their_chapter_and_progress(over, place):
    found = prepared(story("Pereira died."), tools_for(index=nodes(over, **{BOOK: PRISON})))
    [part] = [part for part in found.passages if "Pereira died" in part.text]
    assert (part.chapter, part.progress_pct) == place
    assert part.text.split("\n\n")[0] in PRISON


# ---- findings


def test_rules_find_what_the_excerpts_rule_out_and_may_be_off():
    found = prepared(STORIES["137"])
    [finding], [row] = found.findings, rows_of(found, "findings")
    assert (finding.rule, finding.node_id) == ("act_after_death", f"{BOOK}:sec1:c0")
    assert (row.node_id, row.note) == (finding.node_id, "act_after_death")
    assert prepared(STORIES["137"], reasoning=False).findings == ()


# ---- as a record


def test_evidence_travels_and_is_the_same_every_time_and_claims_name_their_nearest_chunk():
    found, again = prepared(STORIES["46"]), prepared(STORIES["46"])
    assert pickle.loads(pickle.dumps(found)) == found == again
    assert [claim.text for claim in found.claims] == list(story_of(STORIES["46"]).clauses)
    nearest = {part.node_id: part.text for part in found.passages}
    assert "Lisbon" in nearest[found.claims[0].node_id]
    assert "nets" in nearest[found.claims[1].node_id]
    assert {part.doc_id for part in found.passages} == {BOOK}


# ---- names

KNOWN = {"In search of the castaways": "", "1184": "The Count of Monte Cristo", "a": "Part: one", "b": "Part: two"}
KNOWN |= {"The Island": "", "An island": ""}


@pytest.mark.parametrize(
    ("book_name", "doc_id"),
    [
        ("IN SEARCH OF CASTAWAYS", "In search of the castaways"),
        ("in_search-of the “Castaways”.", "In search of the castaways"),
        ("In Search of the Castaways; Or, The Children of Captain Grant", "In search of the castaways"),
        ("Le Count of Monté-Cristo", "1184"),
        ("1184", "1184"),
        ("Part: two", "b"),
        ("the island", None),
        ("Around the World in Eighty Days", None),
        ("Count", None),
        ("", None),
        ("The", None),
    ],
)
def test_a_book_is_found_by_the_words_of_its_id_or_title(book_name, doc_id):
    assert match_book(book_name, KNOWN) == doc_id


def test_unaccent_keeps_every_character_in_its_place():
    text = "Château d’If, Mercédès, Haydée — œuvre, Straße, ‘Ñandú’ ½"
    assert len(unaccent(text)) == len(text)
    assert unaccent("Château d’If, Mercédès") == "Chateau d'If, Mercedes"


@pytest.mark.parametrize(
    ("character", "text", "is_named"),
    [
        ("Edmond Dantès", "“I,” said Edmond\nDantes.", True),
        ("Tom Ayrton/Ben Joyce", "It was Ben Joyce.", True),
        ("Kai-Koumou", "Kai-Koumou rose.", True),
        ("Clara Hunt", "Clara Holt met Clara, and Hunter.", False),
        (" / ", "Anybody.", False),
    ],
)
def test_a_person_is_named_in_full(character, text, is_named):
    assert bool(named(character).search(unaccent(text))) == is_named
