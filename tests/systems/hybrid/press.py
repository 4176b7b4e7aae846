"""A small French press corpus as nodes, and tools over it without Ray."""

import csv
import io

import numpy as np
import pyarrow as pa
from kit.scripted_tools import ScriptedTools

from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.records import Question
from kohaku_ray.systems.hybrid import SYSTEM
from kohaku_ray.systems.hybrid.news import COLUMNS, parse_news
from kohaku_ray.systems.hybrid.settings import HybridSettings

QUESTION = Question("q1", "Combien d'habitants ont fui la digue rompue ?", answer_unit="habitants")

ARTICLES = (
    # par_id, doc_id, netloc, date, order, text
    ("p1", "digue", "ouest.example", "2024-01-12", 0, "La digue rompue a fait fuir 412 habitants. La mer monte."),
    ("p2", "digue", "ouest.example", "2024-01-12", 1, "La digue datait de 1962. Elle était fragile."),
    ("p3", "digue", "ouest.example", "2024-01-12", 2, "Les travaux coûteront 18,5 millions d'euros."),
    ("p4", "copie", "hexa.example", "", 0, "La digue rompue a fait fuir 412 habitants. La mer monte."),
    ("p5", "ailleurs", "", "2024-02-01", 0, "Des habitants ont fui la digue. Le maire rassure les habitants."),
    ("p6", "ailleurs", "", "2024-02-01", 5, "Le conseil vote un budget. La digue sera rebâtie."),
    ("p7", "tram", "ville.example", "2023-06-02", 0, "Le tramway comptera 19 stations. Le chantier dure."),
    ("p8", "gel", "vigne.example", "2023-04-20", 0, "Le gel a détruit les vignes. Les vignerons attendent."),
)


def corpus(articles=ARTICLES):
    """Nodes of a news CSV, with chunks."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for par_id, doc_id, netloc, date, order, body in articles:
        writer.writerow([par_id, doc_id, f"https://{netloc}/{doc_id}", date, netloc, doc_id.title(), body, order, 1, 1])
    news = parse_news("a.csv", text.getvalue().encode())
    assert news.rejects == ()
    documents = sorted(news.documents, key=lambda document: document.doc_id)
    nodes = NodeTable(pa.concat_tables([flatten(document, SYSTEM.chunks) for document in documents]))
    return nodes.with_tokens(np.array([len(nodes.text_of(row).split()) for row in range(len(nodes))], np.int64))


INDEX = corpus()


def tools_for(script, index=INDEX, **fields):
    return ScriptedTools(index, script, SYSTEM, **fields)


def settings(**changed):
    return HybridSettings(**{"cross_encoder": "cosine"} | changed)


def steps(trace, step):
    """A stage's first row, and its items."""
    head, *items = [row for row in trace if row.step == step]
    return head, items


def shown(evidence):
    """What is shown to the model, by par_id."""
    return [text.ref_id for text in evidence.texts]
