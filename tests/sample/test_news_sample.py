"""The shipped news corpus is whole: questions name the paragraphs that answer them, sites repeat one another."""

import csv
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

from kit.rows import check_rows

from kohaku_ray import sample
from kohaku_ray.index.terms import tokenise
from kohaku_ray.records import BLANK
from kohaku_ray.systems.hybrid.news import parse_news

WRITTEN = {"4": "quatre"}  # numbers that the paragraphs write as words


@cache
def paragraphs():
    news = parse_news("articles.csv", Path(sample.path("news/articles.csv")).read_bytes())
    assert news.rejects == ()
    return {
        p.attributes["par_id"]: (document, p) for document in news.documents for p in document.sections[0].paragraphs
    }


@cache
def questions():
    with Path(sample.path("news/questions_news.csv")).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def netloc(par_id):
    return paragraphs()[par_id][1].attributes["document_netloc"]


def test_questions_are_of_every_kind():
    kinds = Counter(row["kind"] for row in questions())
    assert set(kinds) == {"factual", "analysis", "synthesis", "off_topic"}
    assert min(kinds.values()) >= 5
    assert {row["kind"] for row in questions() if row["answer_value"] not in ("", BLANK)} == {"factual"}
    assert len({row["id"] for row in questions()}) == len({row["question"] for row in questions()}) == len(questions())


@check_rows("row", questions())
def test_gold_paragraphs_exist_on_sites_of_their_own_and_are_about_the_question(row):
    gold = json.loads(row["ref_id"])
    assert gold == list(dict.fromkeys(gold))
    if row["kind"] == "off_topic":
        assert gold == []
        assert row["answer_value"] == row["answer_unit"] == BLANK
        return
    assert gold
    sites = [netloc(par_id) for par_id in gold]
    assert len(set(sites)) == len(sites)  # one per site may stay
    assert len(gold) >= 2 or row["kind"] != "synthesis"
    asked = set(tokenise(row["question"], "fr"))
    about = [
        asked & set(tokenise(f"{paragraphs()[par_id][0].title} {paragraphs()[par_id][1].text}", "fr"))
        for par_id in gold
    ]
    assert all(about)


@check_rows("row", [row for row in questions() if row["kind"] == "factual"])
def test_every_gold_paragraph_of_a_fact_states_it(row):
    value = row["answer_value"]
    assert re.fullmatch(r"\d+(\.\d+)?", value)
    for par_id in json.loads(row["ref_id"]):
        text = re.sub(r"(?<=\d)\s(?=\d{3}\b)", "", paragraphs()[par_id][1].text)
        numbers = {number.replace(",", ".") for number in re.findall(r"\d+(?:,\d+)?", text)}
        assert value in numbers or WRITTEN.get(value, "\0") in text
        assert row["answer_unit"].split()[0][:8] in text if row["answer_unit"] else True


def test_nothing_in_the_corpus_is_about_the_off_topic_questions():
    words = {word for _, p in paragraphs().values() for word in tokenise(p.text, "fr")}
    for row in questions():
        if row["kind"] == "off_topic":
            asked = set(tokenise(row["question"], "fr"))
            assert len(asked & words) <= len(asked) / 2, row["question"]
