"""Stories, their book, what is searched and what the rules find, without a model."""

import importlib
import pickle

import pytest
from kit.rows import check_rows
from systems.narrative.stories import INDEX, PRISON, count, nodes, prepared, rows_of, stories, tools_for

from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.records import Question
from kohaku_ray.systems.narrative import SYSTEM, uses
from kohaku_ray.systems.narrative.prepare import MOST_CLAUSES, Story, story_of
from kohaku_ray.systems.narrative.rules import StoryCheck
from kohaku_ray.systems.narrative.settings import NarrativeSettings
from kohaku_ray.systems.questions import read_questions

STORIES = stories()
BOOK = "The Prisoner of the Rock"


def story(content="He slept.", character="Anton Varga", book=BOOK, caption=""):
    return Question("1", content, columns={"book_name": book, "char": character, "caption": caption})


# ---- columns


def test_ids_are_kept_labels_are_left_out_and_a_caption_may_be_missing():
    assert list(STORIES) == ["46", "137", "007", "9", "10"]
    assert all(set(story.columns) == {"book_name", "char", "caption"} for story in STORIES.values())
    (question,) = read_questions("t.csv", b"id,book_name,char,content\n1,B,C,text\n", columns=SYSTEM.columns)
    assert story_of(question) == Story("text", "C", "B", "")


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
    story = Story("He ran away. She stayed at home.", "Tom Ayrton/Ben Joyce", "B", "The Mutiny")
    assert story.queries(with_character=True) == (
        ("He ran away.", "clause"),
        ("She stayed at home.", "clause"),
        ("Tom Ayrton Ben Joyce He ran away. She stayed at home.", "story"),
        ("The Mutiny", "caption"),
    )
    assert story.queries(with_character=False)[2] == (story.content, "story")


def test_a_story_of_ten_thousand_words_has_few_queries_that_lose_no_word():
    content = " ".join(f"On day {n} he walked to town{n} and back." for n in range(1250))
    story = Story(content, "Anton", BOOK, "")
    assert len(story.clauses) <= MOST_CLAUSES
    assert " ".join(story.clauses).split() == content.split()


@check_rows(("n_words", "k"), [(19, 10), (20, 11), (100, 15), (400, 30), (10_000, 30)])
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


def test_a_book_is_read_once_per_content(monkeypatch):
    read, module = [], importlib.import_module("kohaku_ray.systems.narrative.prepare")
    names = module.read_names
    monkeypatch.setattr(module, "_BOOKS", {})
    monkeypatch.setattr(module, "read_names", lambda texts, **more: read.append(1) or names(texts, **more))
    for key, n_read in (("46", 1), ("137", 1), ("007", 1), ("9", 2)):
        prepared(STORIES[key])
        assert len(read) == n_read
    other = PRISON.replace("Anton Varga", "Bruno Kolbe").replace("Anton", "Bruno")  # as long, with other people
    assert not prepared(STORIES["137"], tools_for(index=nodes(**{BOOK: other}))).knows_character
    assert len(read) == 3
    monkeypatch.setattr(module, "BOOKS_KEPT", 1)
    other = other.replace("Bruno Kolbe", "Carl Dorn")
    prepared(STORIES["137"], tools_for(index=nodes(**{BOOK: other})))
    assert len(module._BOOKS) == 3  # one goes when one comes


@pytest.mark.parametrize("over", ["section", "document"])
def test_excerpts_know_their_chapter_and_progress(over):
    evidence = prepared(story("He sailed for Brazil."), tools_for(index=nodes(over, **{BOOK: PRISON})))
    by_id = {part.node_id: part for part in evidence.passages}
    if over == "section":
        lamp = by_id[f"{BOOK}:sec2:c0"]
        assert (lamp.chapter, lamp.progress_pct) == ("CHAPTER III. THE LAMP", 75.0)
    for part in evidence.passages:
        assert part.text.split("\n\n")[0] in PRISON
        opening = part.text[:30]
        assert PRISON.index(part.chapter) < PRISON.index(opening)


def test_a_book_without_a_novel_s_attributes_has_chapters_alone():
    sections = [Section(name, (Paragraph(text, (Sentence(0, len(text)),)),)) for name, text in (("One", "Anton sat."),)]
    chunks = Chunks(unit="tokens", size=40, min_size=1, over="section")
    plain = NodeTable(flatten(Document(BOOK, BOOK, tuple(sections)), chunks, count))
    (part,) = prepared(story(), tools_for(index=plain)).passages
    assert (part.chapter, part.progress_pct) == ("One", None)


@pytest.mark.parametrize(
    ("name", "known"), [("Clara Holt", True), ("C. Holt/Clara Holt", True), ("Clara Hunt", False), ("", False)]
)
def test_a_name_in_the_books_text_is_known(name, known):
    row = f"9,The Garden,{name},,Clara Holt loved roses.,consistent"
    assert prepared(stories(row)["9"]).knows_character is known


# ---- findings


def test_rules_read_the_whole_book_and_a_findings_excerpt_joins_those_that_were_retrieved():
    content = "He grew vines and kept nets on the wall. He was born in Oporto."
    question = stories(f'1,The Prisoner of the Rock,Anton Varga,,"{content}",contradict')["1"]
    without, with_rules = (prepared(question, k=1, reasoning=on) for on in (False, True))
    [finding] = with_rules.check.findings
    assert (finding.rule, finding.chapter) == ("born_twice", "CHAPTER I. THE HARBOUR")
    [retrieved], [first, joined] = without.passages, with_rules.passages
    assert first == retrieved
    assert joined.node_id == finding.node_id != first.node_id
    assert finding.excerpt in joined.text


def test_rules_find_what_the_excerpts_rule_out_and_may_be_off_together_or_one_by_one():
    evidence = prepared(STORIES["137"])
    findings, rows = evidence.check.findings, rows_of(evidence, "findings")
    assert {(finding.rule, finding.chapter) for finding in findings} == {
        ("act_after_death", "CHAPTER II. THE ROCK"),
        ("act_after_death", "CHAPTER III. THE LAMP"),
    }
    assert [(row.node_id, row.note) for row in rows] == [(finding.node_id, "act_after_death") for finding in findings]
    [claim], facts = rows_of(evidence, "claims"), rows_of(evidence, "facts")
    assert (claim.text, claim.note) == ("Anton Varga died in Vienna in 1810.", "died 1810 · Vienna")
    assert [row.note for row in facts] == [
        "born 1796 · Lisbon (CHAPTER I. THE HARBOUR)",
        "arrested 1815–1829 (CHAPTER II. THE ROCK)",
        "freed 1829 (CHAPTER II. THE ROCK)",
        "travelled 1832 · Brazil (CHAPTER III. THE LAMP)",
    ]
    assert prepared(STORIES["137"], reasoning=False).check == StoryCheck()
    assert prepared(STORIES["137"], rules=("born_twice",)).check.findings == ()
    with pytest.raises(ValueError, match=r"'born_twise' is no rule \(did you mean born_twice\?\)"):
        NarrativeSettings(rules=("born_twise",))


# ---- as a record


def test_evidence_travels_and_is_the_same_every_time_and_claims_name_their_nearest_chunk():
    evidence, again = prepared(STORIES["46"]), prepared(STORIES["46"])
    assert pickle.loads(pickle.dumps(evidence)) == evidence == again
    assert [claim.text for claim in evidence.claims] == list(story_of(STORIES["46"]).clauses)
    nearest = {part.node_id: part.text for part in evidence.passages}
    assert "Lisbon" in nearest[evidence.claims[0].node_id]
    assert "nets" in nearest[evidence.claims[1].node_id]
    assert {part.doc_id for part in evidence.passages} == {BOOK}


def test_the_whole_book_comes_in_reading_order():
    evidence = prepared(STORIES["46"], evidence="book", k=2)
    assert len(evidence.passages) == 2
    assert [part.node_id for part in evidence.book] == [
        INDEX.node_id(row)
        for row in range(len(INDEX))
        if INDEX.node_id(row).startswith(BOOK) and ":c" in INDEX.node_id(row)
    ]
    assert "".join("".join(part.text.split()) for part in evidence.book).count("Anton") == PRISON.count("Anton")
