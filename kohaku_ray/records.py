"""The records that all packages share: a question, a model's reply, a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BLANK = "is_blank"
"""How an abstention is written in answer_value, ref_id, ref_url and supporting_materials (WattBot)."""

UNANSWERABLE = "Unable to answer with confidence based on the provided documents."
"""How an abstention is written in the answer column (WattBot)."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a question file.

    Attributes:
        question_id: Unique within its file.
        text: The question itself, never empty.
        answer_unit: The unit the answer is asked in, where the file has one.
        answer_type: The kind of answer asked for (number, range, boolean, name), where the file has one.
        columns: Every other column of the file, as text.
    """

    question_id: str
    text: str
    answer_unit: str | None = None
    answer_type: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model backend sent back for one chat request.

    Attributes:
        text: The generated text.
        prompt_tokens: Tokens of the prompt, 0 where the backend does not say.
        cached_tokens: How many of them came from a prefix cache.
        completion_tokens: Generated tokens, 0 where the backend does not say.
        finish_reason: ``stop``, ``length`` or the backend's own word.
        replica: Which replica answered; empty where there is only one.
        service_s: Seconds in the backend.
        gpu_s: GPU seconds of its replica that this call used; 0 without a GPU.
        joules: Energy of these GPUs for this call; None where it is not measured.
    """

    text: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = "stop"
    replica: str = ""
    service_s: float = 0.0
    gpu_s: float = 0.0
    joules: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """One member's answer to one question.

    Attributes:
        answer: The answer as a sentence for a person.
        answer_value: The bare value as the model wrote it; empty when ``is_blank``.
        answer_unit: The unit the model gave, or the question's own.
        ref_ids: Cited document ids, in the order cited, without repeats.
        explanation: The reasons, in the model's words.
        is_blank: The model abstained (or nothing could be read from its reply).
        n_foreign_refs: How many cited ids were dropped because the context does not hold them.
        attempt: Which attempt gave it, from 0.
        error: Why the reply could not be used; None when it could.
    """

    answer: str = ""
    answer_value: str = ""
    answer_unit: str = ""
    ref_ids: tuple[str, ...] = ()
    explanation: str = ""
    is_blank: bool = True
    n_foreign_refs: int = 0
    attempt: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One item of one step towards an answer: a row of trace.parquet.

    Attributes:
        step: Name of the step, such as ``plan`` or ``evidence``.
        rank: Place among the step's items, from 0.
        text: Text of the item.
        node_id: Id of the node, where the item is a node.
        doc_id: That node's document.
        kind: That node's kind.
        scores: Named numbers.
        note: One word or two, such as where it came from.
        error: What went wrong.
        attempt: Which attempt, from 0.
    """

    step: str
    rank: int = 0
    text: str = ""
    node_id: str | None = None
    doc_id: str | None = None
    kind: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    error: str | None = None
    attempt: int = 0
