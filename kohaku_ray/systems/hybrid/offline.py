"""A French stand-in for hybrid's models: it quotes the sentences that cover the question best, and says so.

It reads a request's variables, not its prose: a baseline to compare models with.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kohaku_ray.documents.french import split_french
from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.index.terms import tokenise
from kohaku_ray.models.request import CHARS_PER_TOKEN, ChatRequest
from kohaku_ray.records import BLANK, Reply
from kohaku_ray.systems.hybrid.reading import NO_INFORMATION, WORDS, numbers_of, read_numbers

VERSION = 1
"""Counts up when the same request would get another reply: it is part of the ledger's keys."""

SAYS_SO = "Réponse extractive, sans modèle de langue."
"""How every answer begins its analysis."""

_CITED = 3  # most texts quoted
_NEAR_BEST = 0.9  # of the best sentence's share: what the first quoted sentence needs at a temperature above 0
_AGREEING = 0.75  # of the first one's share: what another text's sentence needs to be quoted too
_AROUND = 0.5  # weight of a term that stands elsewhere in the text, or in its title
_UNKNOWN = 1.0  # weight of a term that no text has, of the weight of one that a single text has
_BESIDE = 40  # characters behind a number in which what it counts stands
_NAMES = 4  # names of the context that the stand-in's expansion adds
_NEXT = re.compile(r"[0-9,;:.!?]")  # behind it, something else is counted
_WORD = re.compile(r"[^\W_][\w'’-]*")
_NAME = re.compile(r"(?<![.?!»]\s)(?<!^)\b[A-ZÀ-Ý][\w’'-]{3,}")
_COUNTED = re.compile(r"\bcombien\s+(?:de\s+|d['’])?([^\W\d_]+)", re.IGNORECASE)
_ASKS_NUMBER = re.compile(
    r"\b(?:combien|quelle part|quelle? (?:est la )?(?:puissance|distance|taille|durée|année|montant|quantité|nombre|"
    r"proportion|superficie|hauteur|prix|coût))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a text with the weighted share of the question's terms that it covers."""

    share: float
    text: str
    source: Mapping[str, str]


class OfflineFrench:
    """Expands and answers without a model; the seed draws among the best sentences at a temperature above 0."""

    def __init__(self, abstain_below: float = 0.35, window_tokens: int = 131072) -> None:
        """Set its two bounds.

        Args:
            abstain_below: Weighted share of the question's terms that the best sentence must cover, or the answer is
                blank.
            window_tokens: Longest prompt, at four characters per token.
        """
        self._abstain_below, self._window_tokens = abstain_below, window_tokens

    @property
    def identity(self) -> str:
        """Name the rules and their settings."""
        bounds = f"abstain_below={self._abstain_below:g} window_tokens={self._window_tokens}"
        return f"extractive-fr/{VERSION} {bounds}"

    async def chat(self, request: ChatRequest) -> Reply:
        """Expand or answer, by ``variables["role"]``.

        Raises:
            ContextOverflowError: The prompt is longer than the window.
            ModelError: The request has no variables of either role.
        """
        n_tokens = request.n_chars // CHARS_PER_TOKEN
        if n_tokens > self._window_tokens:
            raise ContextOverflowError(
                f"the prompt has about {n_tokens} tokens but window_tokens of the offline model is "
                f"{self._window_tokens}: lower hybrid.max_context_docs or raise window_tokens"
            )
        variables, draw = request.variables or {}, random.Random(request.seed)  # noqa: S311  # a draw, not a secret
        match variables:
            case {"role": "expand", "question": question, "context": context, "n_queries": n}:
                reply: Any = expand(question, context, n)
            case {"role": "answer", "question": question, "texts": texts}:
                unit = variables.get("answer_unit") or ""
                ranked = rank(question, texts)
                lead = _lead(ranked, draw, request.temperature) if ranked else None
                known = lead is not None and lead.share >= self._abstain_below
                reply = _answer(question, unit, lead, ranked) if lead is not None and known else _blank(unit, ranked)
            case _:
                raise ModelError(
                    f"hybrid's offline model knows the roles expand and answer with their variables, the request has "
                    f"{', '.join(variables) or 'none'}: send those of the prompt, or deploy another model"
                )
        text = json.dumps(reply, ensure_ascii=False)
        return Reply(text, prompt_tokens=n_tokens, completion_tokens=len(text) // CHARS_PER_TOKEN)

    async def close(self) -> None:
        """Nothing is open."""


def expand(question: str, context: Sequence[str], n_queries: int) -> list[str]:
    """Write sub-queries: the question's keywords, their halves, and the keywords with the context's commonest names."""
    kept = [word for word in _WORD.findall(question) if _terms(word)]
    names = Counter(name for text in context for name in set(_NAME.findall(text)) if name not in kept)
    half = (len(kept) + 1) // 2
    queries = [" ".join(kept), " ".join(kept[:half]), " ".join(kept[half:])]
    common = sorted(names, key=lambda name: (-names[name], name))[:_NAMES]
    queries += [" ".join([*kept, name]) for name in common]
    return [query for query in dict.fromkeys(queries) if query][:n_queries] or [question]


def rank(question: str, texts: Sequence[Mapping[str, str]]) -> list[Sentence]:
    """Order the texts' sentences by how much of the question they cover, best first; ties keep the texts' order."""
    asked = dict.fromkeys(_terms(question))
    around = [{*_terms(text["text"]), *_terms(text["title"])} for text in texts]
    count = Counter(term for terms in around for term in terms)
    n = len(texts)
    weights = {t: math.log1p(n / count[t]) if count[t] else _UNKNOWN * math.log1p(n) for t in asked}
    total = sum(weights.values()) or 1.0
    found = [
        Sentence(_share(weights, set(_terms(said)), near) / total, said, text)
        for text, near in zip(texts, around, strict=True)
        for said in _sentences(text["text"])
    ]
    return sorted(found, key=lambda one: -one.share)


def value_in(sentence: str, question: str, unit: str) -> str:
    """Lift the number that a question asks for out of a sentence; empty where it asks for none, or none is there.

    A number before what is counted ("combien d'habitants", or the unit) comes first, then the first one that the
    question does not hold itself.
    """
    if not (unit or _ASKS_NUMBER.search(question)):
        return ""
    counted = _COUNTED.search(question)
    nouns = {*_terms(unit), *_terms(counted[1] if counted else "")}
    given = numbers_of(question)
    there = [number for number in read_numbers(sentence) if number.value not in given]
    if "en quelle année" in question.lower():
        there = [number for number in there if re.fullmatch(r"(?:1[0-9]|20)[0-9]{2}", number.text)]
    for number in there:
        after, *_ = _NEXT.split(sentence[number.end : number.end + _BESIDE], maxsplit=1)
        scale = _terms(number.text)[1:]
        if nouns & {*scale, *_terms(after)[:2]} or (unit and after.lstrip().startswith(unit)):
            return number.text
    return there[0].text if there else ""


def _lead(ranked: Sequence[Sentence], draw: random.Random, temperature: float) -> Sentence:
    """Take the best sentence, or draw among those that are nearly as good."""
    near = [one for one in ranked if one.share >= ranked[0].share * _NEAR_BEST]
    return draw.choice(near) if temperature > 0 else near[0]


def _answer(question: str, unit: str, lead: Sentence, ranked: Sequence[Sentence]) -> dict[str, Any]:
    """Quote the first sentence, and the best one of each other text that is about as good."""
    quoted = {lead.source["ref_id"]: lead}
    for one in ranked:
        if one.share >= lead.share * _AGREEING and len(quoted) < _CITED:
            quoted.setdefault(one.source["ref_id"], one)
    analysis = " ".join(f"{one.source['mark']} : « {one.text} »" for one in quoted.values())
    return {
        "explanation": f"{SAYS_SO} {analysis}",
        "answer": " ".join(f"{one.text} {one.source['mark']}" for one in quoted.values()),
        "answer_value": value_in(lead.text, question, unit) or WORDS,
        "answer_unit": unit,
        "ref_id": list(quoted),
        "is_blank": False,
    }


def _blank(unit: str, ranked: Sequence[Sentence]) -> dict[str, Any]:
    share = ranked[0].share if ranked else 0.0
    return {
        "explanation": f"{SAYS_SO} La meilleure phrase couvre {share:.0%} des termes de la question.",
        "answer": NO_INFORMATION,
        "answer_value": BLANK,
        "answer_unit": unit,
        "ref_id": [],
        "is_blank": True,
    }


@functools.lru_cache(maxsize=2**15)
def _terms(text: str) -> tuple[str, ...]:
    """The search terms of a text; kept, for questions on one subject see the same texts."""
    return tuple(tokenise(text, "fr"))


def _sentences(text: str) -> list[str]:
    return [text[one.start : one.end] for one in split_french(text)]


def _share(weights: Mapping[str, float], own: set[str], near: set[str]) -> float:
    return sum(weight * (1.0 if term in own else _AROUND * (term in near)) for term, weight in weights.items())
