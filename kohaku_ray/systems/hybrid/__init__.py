"""Hybrid: nine retrieval stages over a French news corpus, and an answer that cites its sources one by one."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from typing import TextIO

from kohaku_ray.systems.base import AnsweredQuestion, Chunks, Depth, Role, System, Uses, View
from kohaku_ray.systems.hybrid.answer import answer, ballot
from kohaku_ray.systems.hybrid.offline import OfflineFrench
from kohaku_ray.systems.hybrid.prepare import prepare
from kohaku_ray.systems.hybrid.settings import ANSWER_TRIES, DEPLOYMENTS, N_INITIAL_TEXTS, N_PER_QUERY, HybridSettings
from kohaku_ray.systems.hybrid.stages import ANSWER_EXAMPLES, EXPAND_EXAMPLES, STAGES
from kohaku_ray.systems.questions import QuestionColumns


def uses(settings: HybridSettings) -> Uses:
    """Say what a run of these settings asks for."""
    views = {}
    if settings.initial_context:
        opening = Depth(lexical=N_INITIAL_TEXTS)
        views = {"sentences": opening, "chunks": opening}
    if settings.search:
        views["paragraphs"] = Depth(dense=N_PER_QUERY, lexical=N_PER_QUERY)
    return Uses(
        roles=("answer", "expand") if settings.expands else ("answer",),
        views=views,
        attempts=ANSWER_TRIES,
        cross_encoder=settings.cross_encoder if settings.has_cross_encoder else None,
    )


def facts(settings: HybridSettings) -> dict[str, str]:
    """Tell runs apart: who ranks pairs, and which stages are switched off."""
    off = [stage for stage in STAGES if not getattr(settings, stage)]
    return {"ranker": settings.ranker, "stages off": ", ".join(off) or "none"}


def retrieved(questions: Iterable[AnsweredQuestion], file: TextIO) -> None:
    """Write what the last stage showed for each question, best first, as a submission: `score --metric retrieval`."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("id", "answer_value", "ref_id"))
    for vote, _, trace in questions:
        shown = [row["note"] for row in trace if row["step"] == STAGES[-1] and row["node_id"] is not None]
        refs = json.dumps(list(dict.fromkeys(shown)), ensure_ascii=False)
        writer.writerow((vote["question_id"], vote["answer_value"], refs))


SYSTEM = System(
    name="hybrid",
    settings=HybridSettings,
    views={
        "sentences": View(kinds=("sentence",), dense=True, lexical=True),
        "chunks": View(kinds=("chunk",), dense=True, lexical=True),
        "paragraphs": View(kinds=("paragraph",), dense=True, lexical=True),
    },
    roles={
        "expand": Role(
            template="expand.j2", max_tokens=500, temperature=0.9, top_p=0.9, stage="prepare", examples=EXPAND_EXAMPLES
        ),
        "answer": Role(template="answer.j2", max_tokens=5000, temperature=0.3, top_p=0.9, examples=ANSWER_EXAMPLES),
    },
    uses=uses,
    prepare=prepare,
    answer=answer,
    metrics=("citations",),
    ballot=ballot,
    columns=QuestionColumns(gold=QuestionColumns().gold | {"gold", "kind"}),
    quote_step=STAGES[-1],
    chunks=Chunks(unit="chars", size=500, overlap=50),
    document_format="news",
    language="fr",
    deployments=DEPLOYMENTS,
    outputs={"retrieved.csv": retrieved},
    offline=OfflineFrench,
    facts=facts,
)
