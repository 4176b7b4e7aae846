"""A French stand-in for hybrid's models: it quotes the sentences that cover the question best, and says so."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kohaku_ray.index.terms import tokenise
from kohaku_ray.models.baseline import Baseline, Draw, Passage, coverage, quoted, weigh
from kohaku_ray.records import BLANK
from kohaku_ray.systems.hybrid.answer import NO_INFORMATION, WORDS, numbers_of, read_numbers
from kohaku_ray.systems.hybrid.french import split_french

SAYS_SO = "Réponse extractive, sans modèle de langue."
"""How every answer begins its analysis."""

_CITED = 3  # most texts quoted
_AGREEING = 0.75  # of the first one's share: what another text's sentence needs to be quoted too
_NAMES = 4  # names of the context that the expansion adds
_BESIDE = 40  # characters behind a number in which what it counts stands
_WORD = re.compile(r"[^\W_][\w'’-]*")
_NAME = re.compile(r"(?<![.?!»]\s)(?<!^)\b[A-ZÀ-Ý][\w’'-]{3,}")
_COUNTED = re.compile(r"\bcombien\s+(?:de\s+|d['’])?([^\W\d_]+)", re.IGNORECASE)
_ASKS_NUMBER = re.compile(
    r"\b(?:combien|quelle part|quelle? (?:est la )?(?:puissance|distance|taille|durée|année|montant|quantité|nombre|"
    r"proportion|superficie|hauteur|prix|coût))\b",
    re.IGNORECASE,
)

Quoted = tuple[float, str, Mapping[str, str]]
"""Share of the question that a sentence covers, the sentence, and its text."""


class OfflineFrench(Baseline):
    """Expands and answers; the seed draws among the best sentences when the temperature is above 0."""

    name, version = "extractive-fr", 3
    needs: ClassVar = {"expand": ("question", "context", "n_queries"), "answer": ("question", "texts")}

    def reply(self, variables: Mapping[str, Any], draw: Draw) -> Any:
        """Write sub-queries, or quote an answer."""
        question, unit = variables["question"], variables.get("answer_unit") or ""
        if variables["role"] == "expand":
            return {"queries": expand(question, variables["context"], variables["n_queries"])}
        ranked = rank(question, variables["texts"])
        lead = draw.pick(ranked, [share for share, *_ in ranked]) if ranked else (0.0, "", {})
        if not ranked or lead[0] < self.abstain_below:
            best = f"La meilleure phrase couvre {ranked[0][0] if ranked else 0:.0%} des termes de la question."
            return quoted(f"{SAYS_SO} {best}", NO_INFORMATION, BLANK, unit)
        cited = {lead[2]["ref_id"]: lead}
        for passage in ranked:
            if passage[0] >= lead[0] * _AGREEING and len(cited) < _CITED:
                cited.setdefault(passage[2]["ref_id"], passage)
        analysis = " ".join(f"{text['mark']} : « {quote} »" for _, quote, text in cited.values())
        answer = " ".join(f"{quote} {text['mark']}" for _, quote, text in cited.values())
        return quoted(f"{SAYS_SO} {analysis}", answer, value_in(lead[1], question, unit) or WORDS, unit, cited)


def expand(question: str, context: Sequence[str], n_queries: int) -> list[str]:
    """Write sub-queries: the question's keywords, their halves, and the keywords with the context's commonest names."""
    kept = [word for word in _WORD.findall(question) if _terms(word)]
    names = Counter(name for text in context for name in set(_NAME.findall(text)) if name not in kept)
    half = (len(kept) + 1) // 2
    common = sorted(names, key=lambda name: (-names[name], name))[:_NAMES]
    parts = (kept, kept[:half], kept[half:], *([*kept, name] for name in common))
    queries = dict.fromkeys(" ".join(part) for part in parts)
    return [query for query in queries if query][:n_queries] or [question]


def rank(question: str, texts: Sequence[Mapping[str, str]]) -> list[Quoted]:
    """Order the texts' sentences by how much of the question they cover, best first; ties keep the texts' order."""
    passages, sources = [], []
    for text in texts:
        near = frozenset((*_terms(text["text"]), *_terms(text["title"])))
        for span in split_french(text["text"]):
            sentence = text["text"][span.start : span.end]
            passages.append(Passage(text["ref_id"], sentence, (), (frozenset(_terms(sentence)), near, near)))
            sources.append((sentence, text))
    weights = weigh(dict.fromkeys(_terms(question), 1.0), passages)
    shares = [coverage(weights, passage) for passage in passages]
    return sorted(
        ((share, *source) for share, source in zip(shares, sources, strict=True)), key=lambda quoted: -quoted[0]
    )


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
    numbers = [number for number in read_numbers(sentence) if number.value not in given]
    if "en quelle année" in question.lower():
        numbers = [number for number in numbers if re.fullmatch(r"(?:1[0-9]|20)[0-9]{2}", number.text)]
    for number in numbers:
        after = re.split(r"[0-9,;:.!?]", sentence[number.end : number.end + _BESIDE], maxsplit=1)[0]
        if nouns & {*_terms(number.text)[1:], *_terms(after)[:2]} or (unit and after.lstrip().startswith(unit)):
            return number.text
    return numbers[0].text if numbers else ""


@functools.lru_cache(maxsize=2**15)
def _terms(text: str) -> tuple[str, ...]:
    """The search terms of a text; kept, for questions on one subject see the same texts."""
    return tuple(tokenise(text, "fr"))
