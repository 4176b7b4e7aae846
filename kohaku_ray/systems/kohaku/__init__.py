"""KohakuRAG (arXiv 2603.07612): plan queries, search a tree of text, answer with citations, retry while blank."""

from __future__ import annotations

from kohaku_ray.models.extractive import ExtractiveBackend
from kohaku_ray.systems.base import Depth, Role, System, Uses, View
from kohaku_ray.systems.kohaku.answer import answer
from kohaku_ray.systems.kohaku.prepare import (
    ANSWER_EXAMPLES,
    PLAN_EXAMPLES,
    characters_with_parents,
    opening,
    prepare,
    snippets_with_parents,
)
from kohaku_ray.systems.kohaku.settings import KohakuSettings


def uses(settings: KohakuSettings) -> Uses:
    """Return what a run with these settings uses."""
    n_attempts = settings.max_retries + 1
    views = {"nodes": Depth(dense=settings.top_k * n_attempts)}
    if settings.bm25 == "fuse":
        views["terms"] = Depth(lexical=settings.top_k * n_attempts)
    elif settings.bm25_top_k:
        views["paragraphs"] = Depth(lexical=settings.bm25_top_k)
    if settings.image_top_k:
        views["images"] = Depth(dense=settings.image_top_k * n_attempts)
    return Uses(
        roles=("answer",) if settings.queries == 1 else ("answer", "plan"),
        views=views,
        attempts=n_attempts,
        retry_settings=("max_retries", "replan", "widen_final"),
        further_settings=("replan", "widen_final"),
        opens_again=settings.replan,
        context_tokens=settings.max_context_tokens,
        context_matches=settings.n_matches if settings.context == "groups" else None,
        cross_encoder=settings.cross_encoder,
        images=("answer",) if settings.send_images else (),
    )


SYSTEM = System(
    name="kohaku",
    settings=KohakuSettings,
    views={
        "nodes": View(kinds=("sentence", "paragraph"), dense=True),
        "paragraphs": View(kinds=("paragraph",), lexical=True),
        "terms": View(kinds=("sentence", "paragraph"), lexical=True, on_demand=True),
        "images": View(kinds=("image",), dense=True),
    },
    roles={
        "plan": Role(template="plan.j2", max_tokens=512, stage="prepare", examples=PLAN_EXAMPLES),
        "answer": Role(template="answer.j2", max_tokens=1024, temperature=0.7, top_p=1.0, examples=ANSWER_EXAMPLES),
    },
    uses=uses,
    prepare=prepare,
    answer=answer,
    metrics=("wattbot", "kaggle"),
    opening=opening,
    quote_step="evidence",
    offline=ExtractiveBackend,
    derived={
        "snippets with parents": snippets_with_parents,
        "characters with parents": characters_with_parents,
    },
    facts=lambda settings: {"top_k": str(settings.top_k)},
)
