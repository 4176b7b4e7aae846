"""Records that rooms pass to each other, and digests of plain values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.errors import ConfigError


class UnstableError(ConfigError, TypeError):
    """A value has no stable form."""


def canonical_json(value: Any, where: str = "the value", *, ascii_only: bool = True) -> str:
    """Write plain values as canonical JSON: sorted keys, no white space, unless ``ascii_only`` is off, ASCII.

    Raises:
        UnstableError: ``where``, named in the message, holds something without a stable form: a set, an object, NaN.
    """
    _check_stable(value, where)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=False)


def digest(value: Any, n_bytes: int = 8, where: str = "the value") -> str:
    """Hash plain values: BLAKE2b of their canonical JSON, ``2 * n_bytes`` hexadecimal characters.

    Raises:
        UnstableError: See ``canonical_json``.
    """
    return digest_text(canonical_json(value, where), n_bytes)


def digest_text(text: str | bytes, n_bytes: int = 8) -> str:
    """Hash a text or bytes: BLAKE2b, ``2 * n_bytes`` hexadecimal characters."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.blake2b(data, digest_size=n_bytes).hexdigest()


def pluralize(n: float, noun: str) -> str:
    """Write a count, or an amount of a resource, with its noun, in the plural unless it is one."""
    return f"{f'{n:,}' if isinstance(n, int) else f'{n:g}'} {noun}{'' if n == 1 else 's'}"


def plain(value: Any) -> Any:
    """Copy plain values as JSON would give them back.

    Raises:
        UnstableError: See ``canonical_json``.
    """
    return json.loads(canonical_json(value, ""))


def _check_stable(value: Any, where: str) -> None:
    """Refuse a value that JSON would change, or would write differently in another run."""
    if value is None or isinstance(value, (bool, int, str)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnstableError(f"{where or 'the value'} is {value!r}, which has no stable form: give a finite number")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise UnstableError(
                    f"{where} is keyed by {name!r} of type {type(name).__name__}, which has no stable form: "
                    "keys must be text"
                )
            _check_stable(item, f"{where}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            _check_stable(item, f"{where}[{position}]")
    else:
        raise UnstableError(
            f"{where or 'the value'} is of type {type(value).__name__}, which has no stable form: "
            "use text, finite numbers, true, false, null, lists and mappings with text keys"
        )


BLANK = "is_blank"
"""How an abstention is written in answer_value, ref_id, ref_url and supporting_materials (WattBot)."""

UNANSWERABLE = "Unable to answer with confidence based on the provided documents."
"""How an abstention is written in the answer column (WattBot)."""


FAILED = "failed, no abstention: "
"""Begins the explanation of a question whose members all failed, where a submission says ``is_blank``."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a question file; unit and type are those the answer is asked in, where the file has them.

    ``question_id`` is unique, the text is never empty, and ``columns`` holds every other column of the file, as text.
    Of lower ``number`` are those that stand before it in the file, whose calls a model's replica takes first.
    """

    question_id: str
    text: str
    answer_unit: str | None = None
    answer_type: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    number: int = field(default=0, compare=False)


WHOLE, CUT = "stop", "length"
"""Finish reasons of a reply that counts: its model ended it, or max_tokens cut it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model backend sent back for one chat request.

    Attributes:
        text: The generated text.
        prompt_tokens: Tokens of the prompt, 0 where the backend does not say.
        cached_tokens: How many of them came from a prefix cache.
        completion_tokens: Generated tokens, 0 where the backend does not say.
        finish_reason: ``WHOLE``, ``CUT``, or what the backend said of a reply that failed.
        replica: Which replica answered; empty where there is only one.
        service_s: Seconds in the backend.
        gpu_s: GPU seconds of its replica that this call used; 0 without a GPU.
        joules: Energy of these GPUs for this call; None where it is not measured.
        note: What the server was asked otherwise than the request says, since it refuses that; empty: nothing.
        served_model: The model that the reply names; empty: none.
        server: Digest of the address that was asked, which may be a secret of the environment; empty: no address.
    """

    text: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = WHOLE
    replica: str = ""
    service_s: float = 0.0
    gpu_s: float = 0.0
    joules: float | None = None
    note: str = ""
    served_model: str = field(default="", compare=False)
    server: str = field(default="", compare=False)


FLAGS = {
    "uncited": "cite no document of their context",
    "mistyped": "have no value of the kind that the question asks for",
    "unit": "are in a unit that measures something else than the one asked for",
    "contradictory": "say is_blank beside a value and a reference (the value is kept)",
    "withheld": "say is_blank beside a value that has no reference or is of another kind (the value is dropped)",
    "several": "stand in a reply beside another that is as complete, with another value (the first is taken)",
    "cut": "were cut off (what was complete is kept)",
    "repaired": "were no valid JSON (read as json-repair mends it)",
    "shortened": "were given from a prompt that the server had cut",
    "few_sources": "rest on a context of fewer than three texts",
}
"""What can be wrong with an answer that could be read, or with its context, and how it is said of several."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One member's answer to one question, its abstention, or its failure, which has no ballot.

    Attributes:
        answer_value: The bare value as the model wrote it; empty when ``is_blank``: the model abstained, or nothing
            could be read from its reply. ``answer`` is a sentence for a person.
        answer_unit: The unit the model gave, or the question's own.
        ref_ids: Cited document ids, in the order cited, without repeats.
        n_foreign_refs: How many cited ids were dropped because the context does not hold them.
        attempt: Which attempt gave it, from 0.
        error: Why the model failed or its reply could not be used: the prediction failed; None: it did not.
        flags: What was wrong with the reply or its context, of ``FLAGS``.
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
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One item of one step towards an answer: a row of trace.parquet.

    Where the item is a node, it has ``node_id``, ``doc_id`` and ``kind``. Ranks and attempts count from 0, ``scores``
    are named numbers, and ``note`` is a word or two, such as where the item came from.
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
