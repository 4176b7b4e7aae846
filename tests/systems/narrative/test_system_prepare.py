"""Stories, their book, what is searched and what the rules find, without a model."""

import importlib
import pickle

import pytest
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
    assert all(set(one.columns) == {"book_name", "char", "caption"} for one in STORIES.values())
    (one,) = read_questions("t.csv", b"id,book_name,char,content\n1,B,C,text\n", columns=SYSTEM.columns)
    assert story_of(one) == Story("text", "C", "B", "")


# ---- what is searched


def test_clauses_end_where_sentences_and_subclauses_do():
    content = "He grew vines and kept nets on the wall. Born in Oporto, he grew vines on the wall."
    row = f'1,The Prisoner of the Rock,Anton Varga,,"{content}",contradict'
    question = stories(row)["1"]
    without, found = (prepared(question, k=1, reasoning=on) for on in (False, True))
    [finding] = found.check.findings
    assert (finding.rule, finding.chapter) == ("born_twice", "CHAPTER I. THE HARBOUR")
    [retrieved], [first, joined] = without.passages, found.passages
    assert first == retrieved
    assert joined.node_id == finding.node_id != first.node_id
    assert finding.excerpt in joined.text


def test_rules_find_what_the_excerpts_rule_out_and_may_be_off_together_or_one_by_one():
    found = prepared(STORIES["137"])
    findings, rows = found.check.findings, rows_of(found, "findings")
    assert {(one.rule, one.chapter) for one in findings} == {
        ("act_after_death", "CHAPTER II. THE ROCK"),
        ("act_after_death", "CHAPTER III. THE LAMP"),
    }
    assert [(row.node_id, row.note) for row in rows] == [(one.node_id, "act_after_death") for one in findings]
    [claim], facts = rows_of(found, "claims"), rows_of(found, "facts")
    assert (claim.text, claim.note) == ("Anton Varga died in Vienna in 1810.", "died 1810 · Vienna")
    assert [row.note for row in facts] == [
        "born 1796 · Lisbon (CHAPTER I. THE HARBOUR)",
        "arrested 1815 (CHAPTER II. THE ROCK)",
        "travelled 1832 · Brazil (CHAPTER III. THE LAMP)",
    ]
    assert prepared(STORIES["137"], reasoning=False).check == StoryCheck()
    assert prepared(STORIES["137"], rules=("born_twice",)).check.findings == ()
    with pytest.raises(ValueError, match=r"'born_twise' is no rule, did you mean born_twice\?"):
        NarrativeSettings(rules=("born_twise",))


# ---- as a record


def test_evidence_travels_and_is_the_same_every_time_and_claims_name_their_nearest_chunk():
    found, again = prepared(STORIES["46"]), prepared(STORIES["46"])
    assert pickle.loads(pickle.dumps(found)) == found == again
    assert [claim.text for claim in found.claims] == list(story_of(STORIES["46"]).clauses)
    nearest = {part.node_id: part.text for part in found.passages}
    assert "Lisbon" in nearest[found.claims[0].node_id]
    assert "nets" in nearest[found.claims[1].node_id]
    assert {part.doc_id for part in found.passages} == {BOOK}


def test_the_whole_book_comes_in_reading_order():
    found = prepared(STORIES["46"], evidence="book", k=2)
    assert len(found.passages) == 2
    assert [part.node_id for part in found.book] == [
        INDEX.node_id(row)
        for row in range(len(INDEX))
        if INDEX.node_id(row).startswith(BOOK) and ":c" in INDEX.node_id(row)
    ]
    assert "".join("".join(part.text.split()) for part in found.book).count("Anton") == PRISON.count("Anton")
