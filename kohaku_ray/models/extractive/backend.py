"""The extractive backend: plans and answers from a request's variables."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.extractive.terms import (
    STOP_WORDS,
    Passage,
    content_stems,
    cover,
    names_of,
    passages_of,
    term_weights,
    words_of,
)
from kohaku_ray.models.extractive.values import Asked, Candidate, candidates, read_question
from kohaku_ray.models.request import CHARS_PER_TOKEN, ChatRequest
from kohaku_ray.records import BLANK, UNANSWERABLE, Reply
from kohaku_ray.values.read import is_blank_strict

VERSION = 1
"""Increased when the same request would get another reply: it is part of the ledger's keys."""

_N_READ = 64  # passages read for values, by coverage
_NEAR_BEST = 0.12  # how far below the best score a passage may be and still be drawn
_SOFTNESS = 0.08  # score difference that is a factor of e in odds at temperature 1
_AGREEING_SHARE = 0.6  # share of the winner's coverage that another document with the same value needs to be cited
_AGREEING_SHARE_BOOLEAN = 0.95
_NEEDED = {"plan": ("question", "n_queries"), "answer": ("question", "snippets")}
_EXPANSIONS = {
    "AI": "artificial intelligence",
    "CO2": "carbon dioxide",
    "CO2e": "carbon dioxide equivalent",
    "CPU": "central processing unit",
    "DNN": "deep neural network",
    "FLOPs": "floating-point operations",
    "GHG": "greenhouse gas",
    "GPU": "graphics processing unit",
    "kWh": "kilowatt-hours",
    "LLM": "large language model",
    "ML": "machine learning",
    "MWh": "megawatt-hours",
    "NLP": "natural language processing",
    "PUE": "power usage effectiveness",
    "TDP": "thermal design power",
    "TPU": "tensor processing unit",
    "WUE": "water usage effectiveness",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A passage with its best value."""

    score: float
    share: float
    passage: Passage
    candidate: Candidate


class ExtractiveBackend:
    """Answers without a model; the seed draws among the best passages when the temperature is above 0."""

    def __init__(self, abstain_below: float = 0.35, window_tokens: int = 131072) -> None:
        """Set both bounds.

        Args:
            abstain_below: Weighted share of the question's terms the chosen passage must cover, or the answer is blank.
            window_tokens: Longest prompt, at four characters per token.
        """
        self._abstain_below = abstain_below
        self._window_tokens = window_tokens

    @property
    def identity(self) -> str:
        """The rules' version and their settings."""
        return f"extractive/{VERSION} abstain_below={self._abstain_below:g} window_tokens={self._window_tokens}"

    async def chat(self, request: ChatRequest) -> Reply:
        """Plan or answer, by ``variables["role"]``.

        Raises:
            ContextOverflowError: The prompt is longer than the window.
            ModelError: The request has no variables, or a role that is neither plan nor answer.
        """
        n_tokens = request.n_chars // CHARS_PER_TOKEN
        if n_tokens > self._window_tokens:
            raise ContextOverflowError(
                f"the prompt has about {n_tokens} tokens but window_tokens of the extractive backend is "
                f"{self._window_tokens}: lower the context budget or raise window_tokens"
            )
        variables = request.variables or {}
        missing = [name for name in _NEEDED.get(variables.get("role", ""), ()) if name not in variables]
        if missing:
            raise ModelError(f"the extractive backend needs {', '.join(missing)} among the request's variables")
        draw = random.Random(request.seed)  # noqa: S311  # a draw, not a secret
        match variables.get("role"):
            case "plan":
                text = json.dumps(plan(variables, draw, request.temperature), ensure_ascii=False)
            case "answer":
                text = json.dumps(self._answer(variables, draw, request.temperature), ensure_ascii=False)
            case role:
                raise ModelError(
                    f"the extractive backend reads the request's variables, but their role is {role!r}: "
                    "send 'plan' or 'answer' with the variables of the prompt, or deploy another backend"
                )
        return Reply(text, prompt_tokens=n_tokens, completion_tokens=len(text) // CHARS_PER_TOKEN)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _answer(self, variables: Mapping[str, Any], draw: random.Random, temperature: float) -> dict[str, Any]:
        asked = read_question(variables["question"], variables.get("answer_unit"), variables.get("answer_type"))
        snippets = [*variables.get("snippets", ()), *variables.get("media", ())]
        choices = rank(asked, [passage for ref_id, text in snippets for passage in passages_of(ref_id, text)])
        if not choices or choices[0].share < self._abstain_below:
            return _blank(asked, choices)
        chosen = pick(choices, draw, temperature)
        return {
            "explanation": f"“{chosen.passage.text}”",
            "answer": f"{chosen.candidate.value} {chosen.candidate.unit}".strip(),
            "answer_value": chosen.candidate.value,
            "answer_unit": chosen.candidate.unit,
            "ref_id": list(references(asked, chosen, choices)),
            "is_blank": False,
        }


def plan(variables: Mapping[str, Any], draw: random.Random, temperature: float) -> list[str]:
    """Write queries without a model: the question; without stop words; its keywords; expanded; then its parts.

    Above temperature 0 the parts are in random order.
    """
    question = " ".join(variables["question"].split())
    kept = [word.text for word in words_of(question) if word.text.lower() not in STOP_WORDS]
    keywords = [word for word in kept if word[0].isupper() or any(map(str.isdigit, word)) or len(word) > 6]
    expansions = [_EXPANSIONS[word] for word in dict.fromkeys(kept) if word in _EXPANSIONS]
    parts = _parts(question, kept, variables.get("answer_unit"))
    if temperature > 0:
        draw.shuffle(parts)
    expanded = " ".join([*kept, *expansions])
    distinct: dict[str, str] = {}
    for query in (question, " ".join(kept), " ".join(keywords), expanded, *parts):
        distinct.setdefault(query.casefold(), query)
    distinct.pop("", None)
    return list(distinct.values())[: variables["n_queries"]]


def rank(asked: Asked, passages: Sequence[Passage]) -> list[Choice]:
    """Rank the passages that offer a value by their coverage of the question and the fit of the value."""
    weights = {t: weight for t, weight in term_weights(asked.text, passages).items() if t not in asked.implied}
    names = frozenset(names_of(asked.text))
    covered = sorted(((cover(weights, names, one), one) for one in passages), key=lambda pair: -pair[0].share)
    choices = []
    for found, passage in covered[:_N_READ]:
        speaks = found.found and (found.touches or asked.implied)  # a number in the unit asked for counts as relevant
        offered = candidates(asked, passage, found, weights) if speaks else []
        if offered:
            best = max(offered, key=lambda candidate: candidate.bonus)
            choices.append(Choice(found.share + best.bonus, found.share, passage, best))
    return sorted(choices, key=lambda choice: -choice.score)


def pick(choices: Sequence[Choice], draw: random.Random, temperature: float) -> Choice:
    """Take the best passage, or draw among the near-best with odds that fall with the distance from it."""
    near = [choice for choice in choices if choice.score >= choices[0].score - _NEAR_BEST]
    if temperature <= 0:
        return near[0]
    odds = [math.exp((choice.score - near[0].score) / max(_SOFTNESS * temperature, 1e-9)) for choice in near]
    return draw.choices(near, odds)[0]


def references(asked: Asked, chosen: Choice, choices: Sequence[Choice]) -> tuple[str, ...]:
    """Cite the chosen passage's document, and others whose good passages offer the same value.

    For true and false the other passage must be about as good: that two passages support "true" says little.
    """
    least = chosen.share * (_AGREEING_SHARE if asked.kind != "boolean" else _AGREEING_SHARE_BOOLEAN)
    others = (
        choice.passage.ref_id
        for choice in choices
        if choice.candidate.value == chosen.candidate.value and choice.share >= least
    )
    return tuple(dict.fromkeys((chosen.passage.ref_id, *others)))


def _blank(asked: Asked, choices: Sequence[Choice]) -> dict[str, Any]:
    share = choices[0].share if choices else 0.0
    return {
        "explanation": f"The best passage covers {share:.0%} of the question's terms.",
        "answer": UNANSWERABLE,
        "answer_value": BLANK,
        "answer_unit": asked.shown_unit,
        "ref_id": [],
        "is_blank": True,
    }


def _parts(question: str, kept: Sequence[str], unit: str | None) -> list[str]:
    clauses = re.split(r"[,;:]\s+|\s+(?:and|or|when|while|compared)\s+", question)
    half = len(kept) // 2
    return [
        *([f"{' '.join(kept)} {unit}"] if not is_blank_strict(unit) else []),
        *(clause for clause in clauses if len(content_stems(clause)) > 1),
        " ".join(kept[:half]),
        " ".join(kept[half:]),
    ]
