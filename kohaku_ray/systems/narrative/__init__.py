"""Judge whether a backstory of a character is consistent with the novel."""

from __future__ import annotations

from functools import partial

from kohaku_ray.index.chunks import Chunks
from kohaku_ray.systems.base import Depth, Role, System, Uses, View
from kohaku_ray.systems.narrative.answer import SEARCH_EXAMPLE, VERIFY_EXAMPLE, answer
from kohaku_ray.systems.narrative.dossier import count_of, results_csv, vote_confidence, weighted_ballot
from kohaku_ray.systems.narrative.offline import OfflineJudge
from kohaku_ray.systems.narrative.prepare import COLUMNS, EVERY, prepare
from kohaku_ray.systems.narrative.settings import NarrativeSettings, refuse_identical_members


def uses(settings: NarrativeSettings) -> Uses:
    """Say what a run of these settings asks for."""
    most = settings.most_excerpts
    return Uses(
        roles=("search",) if settings.stages == 1 else ("search", "verify"),
        views={
            "books": Depth(dense=EVERY),
            "chapters": Depth(dense=EVERY),
            "chunks": Depth(dense=most if settings.evidence == "retrieved" else EVERY, lexical=most),
        },
    )


SYSTEM = System(
    name="narrative",
    settings=NarrativeSettings,
    views={
        "books": View(kinds=("document",), dense=True),
        "chapters": View(kinds=("section",), dense=True),
        "chunks": View(kinds=("chunk",), dense=True, lexical=True),
    },
    roles={
        "search": Role("search.j2", max_tokens=2048, temperature=0.0, top_p=1.0, seed=42, examples=(SEARCH_EXAMPLE,)),
        "verify": Role("verify.j2", max_tokens=2048, seed=42, examples=(VERIFY_EXAMPLE,)),
    },
    uses=uses,
    check=refuse_identical_members,
    prepare=prepare,
    answer=answer,
    metrics=("label",),
    ballot=weighted_ballot,
    weighs=True,
    columns=COLUMNS,
    extra_columns={
        "confidence": vote_confidence,
        "claims": partial(count_of, "claims"),
        "findings": partial(count_of, "findings"),
    },
    quote_step="dossier",
    outputs={"results.csv": results_csv},
    offline=OfflineJudge,
    facts=lambda settings: {
        "k": str(settings.k),
        "stages": str(settings.stages),
        "evidence": settings.evidence,
        "reasoning": "on" if settings.reasoning else "off",
    },
    chunks=Chunks(unit="tokens", size=600, min_size=200, over="section"),
    document_format="novel",
)
