"""kohaku's stand-in for a model: it quotes the value that fits a question, from the passage that covers it best."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from kohaku_ray.models.baseline import (
    Baseline,
    Draw,
    Passage,
    closeness,
    content_words,
    coverage,
    normalise,
    passages_of,
    quoted,
    stem,
    weigh,
    words_of,
)
from kohaku_ray.records import BLANK, UNANSWERABLE
from kohaku_ray.values import kinds
from kohaku_ray.values.read import is_blank_strict
from kohaku_ray.values.units import Unit, find_unit

_N_READ = 64  # passages read for values, by coverage
_AGREEING = 0.6  # of the winner's coverage: what another document with the same value needs to be cited too
_FITS = 0.35  # score of a number in the unit asked for

SoughtKind = Literal["number", "year", "boolean", "name"]

_QUOTED: Mapping[kinds.ValueKind, SoughtKind] = {
    "number": "number",
    "range": "number",
    "boolean": "boolean",
    "text": "name",
}
_YES_NO = re.compile(r"^\s*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(?:what|which) year\b|^\s*when\b", re.IGNORECASE)
_RANGE = re.compile(r"\brange\b|\bbetween\b|\bfrom what\b", re.IGNORECASE)
_MAGNITUDES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,40})(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2}(?!\w))?"
_NUMBER = re.compile(
    rf"(?<![\w.,:/-])(?P<currency>(?:US)?\$\s?)?(?P<low>{_DIGITS})(?!(?:st|nd|rd|th)\b)(?!\w*-\w)"
    rf"(?:\s?(?:%|[A-Za-z]{{1,4}}\b)?\s?(?:-|–|—|\bto\b|\band\b)\s*\$?(?P<high>{_DIGITS}))?"
    r"(?:[\s-](?P<magnitude>thousand|million|billion|trillion)\b)?(?=(?P<after>[^,;:()\n]{0,48}))"
)
_LABEL = re.compile(
    r"(?:\b(?:table|fig|figure|section|chapter|equation|eq|appendix|page|step|ref|no)s?\.?\s*|\[)\Z", re.IGNORECASE
)
_FACTOR = re.compile(r"\bfactor of\s*(?:about\s*)?\Z")
_NAME_PART = r"(?:[A-Z][\w&/’'.-]*\w|[A-Z]\b)"
_NAME = re.compile(
    rf"(?<![\w-])(?:{_NAME_PART}|\d+[A-Z][\w-]*)"
    rf"(?: (?:(?:of|for|and|the|de) )?(?:{_NAME_PART}|\d+(?:\.\d+)?[A-Z]*(?![\w%])))*"
)
_ARTICLES = re.compile(r"\A(?:(?:The|An?|Our|This|These|In|On|At|For|With|It|We) ?)+\b(?=[A-Z\d]|\Z)")
_NEGATIONS = frozenset(
    re.findall(r"\w+", "not no never none neither nor without cannot lack lacks exclude excludes unable fails failed")
)


@dataclass(frozen=True, slots=True)
class SoughtValue:
    """The value that a question asks for.

    Attributes:
        text: The question without ``True or False:``.
        factors: Its terms, names and numbers with a factor above 1, codes (A100) with the largest.
        unit: Its unit; None: none with a dimension is known.
        counted: Stems of the things counted, where there is no such unit.
        shown_unit: The unit as the answer names it.
    """

    text: str
    factors: Mapping[str, float]
    kind: SoughtKind
    unit: Unit | None
    counted: frozenset[str]
    shown_unit: str
    wants_range: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A passage with the best value that it offers."""

    score: float
    share: float
    passage: Passage
    value: str


def read_question(question: str, answer_unit: str | None, answer_type: str | None) -> SoughtValue:
    """Read what a question asks for from its text, and from its unit and type if the file has them."""
    unit = "" if is_blank_strict(answer_unit) else answer_unit or ""
    text = " ".join(kinds.STATEMENT.sub("", normalise(question)).split())
    stated = kinds.KINDS.get((answer_type or "").strip().lower())
    kind = None if stated is None else _QUOTED[stated]
    if _YEAR.search(text) and not unit and kind in (None, "number"):
        kind = "year"
    elif kind is None:
        is_statement = kinds.STATEMENT.match(question) or _YES_NO.match(question)
        kind = "boolean" if is_statement else "number" if unit or kinds.NUMERIC.search(text) else "name"
    in_text = re.search(r"\bin ([^\s,;()?]+)(?=[?,;])|%|percent", text)
    known = parse_unit(unit or (in_text[1] or "%" if in_text else ""))
    counted = re.search(r"\bhow many ((?:[\w-]+ ?){1,3})", text, re.IGNORECASE)
    nouns = unit or (counted[1] if counted else "")
    words = content_words(text)
    if known is not None:  # a number in the unit asked for says as much as the unit's name
        nouns, words = "", tuple(word for word in words if find_unit(word) is None and word.lower() != known.dimension)
    factors = {}
    for position, word in enumerate(words):
        has_digit, has_letter = any(map(str.isdigit, word)), any(map(str.isalpha, word))
        is_name = position > 0 and word[0].isupper()
        factors[stem(word)] = 3.0 if has_digit and has_letter else 1.5 if has_digit or is_name else 1.0
    return SoughtValue(
        text, factors, kind, known, frozenset(map(stem, content_words(nouns))), unit, bool(_RANGE.search(text))
    )


def parse_unit(text: str) -> Unit | None:
    """Read a unit, perhaps with a magnitude before it (``million litres``)."""
    first, _, rest = text.strip().partition(" ")
    scale = _MAGNITUDES.get(first.lower())
    unit = find_unit(rest if scale else text)
    return None if unit is None else Unit(unit.dimension, unit.factor * (scale or 1.0))


def rank(asked: SoughtValue, passages: Sequence[Passage]) -> list[Choice]:
    """Rank the passages that offer a value by their coverage of the question and the fit of the value."""
    weights = weigh(asked.factors, passages)
    covered = sorted(((coverage(weights, passage), passage) for passage in passages), key=lambda pair: -pair[0])
    plain = {term for term, factor in asked.factors.items() if factor == 1.0}
    choices = []
    for share, passage in covered[:_N_READ]:
        if weights.keys() & passage.layers[0] and (not plain or asked.unit or plain & passage.layers[1]):
            offered = list(_values(asked, passage, share, weights))
            if offered:
                bonus, value = max(offered, key=lambda pair: pair[0])
                choices.append(Choice(share + bonus, share, passage, value))
    return sorted(choices, key=lambda choice: -choice.score)


def _values(
    asked: SoughtValue, passage: Passage, share: float, weights: Mapping[str, float]
) -> Iterator[tuple[float, str]]:
    """Yield the values that a passage offers, each with its score apart from the passage's."""
    if asked.kind == "boolean":
        mine, theirs = (set(re.findall(r"[a-z]+", text.lower())) for text in (asked.text, passage.text))
        flips = bool(mine & _NEGATIONS) != bool(theirs & _NEGATIONS)
        yield 0.0, "1" if share >= 0.5 and not flips else "0"
    elif asked.kind == "name":
        known = {term for term, _ in words_of(asked.text)}
        for match in _NAME.finditer(passage.text):
            name = _ARTICLES.sub("", match[0])
            stems = [term for term, _ in words_of(name)]
            if not set(stems) <= known:
                bonus = 0.3 * closeness(weights, passage, *match.span()) + 0.05 * min(len(stems), 3)
                yield bonus - (0.15 if match.start() == 0 and len(stems) == 1 else 0.0), name.strip(" .'’-/&")
    else:
        yield from _numbers(asked, passage, weights)


def _numbers(asked: SoughtValue, passage: Passage, weights: Mapping[str, float]) -> Iterator[tuple[float, str]]:
    wants_year = asked.kind == "year"
    given = {match["low"].replace(",", "") for match, _ in _amounts(asked.text)}
    for match, unit in _amounts(passage.text):
        low, high = match["low"].replace(",", ""), (match["high"] or "").replace(",", "")
        looks_like_year = re.fullmatch(r"(?:19|20)\d\d", low) is not None and not match["magnitude"]
        fit = 0.0 if wants_year else _fit(asked, match, unit)
        if fit is None or {low, high} & given or (wants_year and not looks_like_year):
            continue
        if looks_like_year and not wants_year and fit < _FITS:
            continue
        near = 0.3 * closeness(weights, passage, match.start("low"), match.end("low"))
        scale = _MAGNITUDES.get(match["magnitude"] or "", 1.0)
        if asked.unit is not None and unit is not None:
            scale *= unit.factor / asked.unit.factor
        ends = [_written(end, scale) for end in (low, high) if end]
        value = f"[{','.join(ends)}]" if high else ends[0]
        yield near + fit + (0.3 if high and asked.wants_range else 0.0), value


@lru_cache(maxsize=16384)
def _amounts(text: str) -> tuple[tuple[re.Match[str], Unit | None], ...]:
    """The numbers of a text that are no labels (Table 3), each with its unit where it has one with a dimension."""
    amounts = []
    for match in _NUMBER.finditer(text):
        before, tokens = text[: match.start()][-40:], _tokens(match)
        if _LABEL.search(before):
            continue
        unit = find_unit("$") if match["currency"] else find_unit("x") if _FACTOR.search(before) else None
        for n in range(len(tokens), 0, -1):
            unit = unit or find_unit(" ".join(tokens[:n]).rstrip("."))
        amounts.append((match, unit))
    return tuple(amounts)


def _tokens(match: re.Match[str]) -> list[str]:
    return match["after"].replace("-fold", " fold").lstrip("- ").split()[:4]


def _fit(asked: SoughtValue, match: re.Match[str], unit: Unit | None) -> float | None:
    """How an amount's unit fits the one asked for; None: not at all."""
    if asked.unit is not None:
        if unit is not None and unit.dimension == asked.unit.dimension:
            return _FITS
        return None if unit or _tokens(match) else -0.2
    if asked.counted:
        return _FITS if asked.counted & set(map(stem, _tokens(match))) else None if unit else -0.1
    return 0.0


def _written(number: str, scale: float) -> str:
    if scale == 1.0:
        return number
    value = float(number) * scale
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.10g}"


class ExtractiveBackend(Baseline):
    """Plans and answers; the seed draws among the best passages when the temperature is above 0."""

    name, version = "extractive", 3
    needs: ClassVar = {"plan": ("question", "n_queries"), "answer": ("question", "snippets")}

    def reply(self, variables: Mapping[str, Any], draw: Draw) -> Any:
        """Write queries, or quote an answer."""
        if variables["role"] == "plan":
            return {"queries": plan(variables["question"], variables["n_queries"], draw)}
        asked = read_question(variables["question"], variables.get("answer_unit"), variables.get("answer_type"))
        snippets = [*variables["snippets"], *variables.get("media", ())]
        passages = [passage for ref_id, text in snippets for passage in passages_of(ref_id, text)]
        choices = rank(asked, passages)
        share = choices[0].share if choices else 0.0
        if not choices or share < self.abstain_below:
            explanation = f"The best passage covers {share:.0%} of the question's terms."
            return quoted(explanation, UNANSWERABLE, BLANK, asked.shown_unit)
        chosen = draw.pick(choices, [choice.score for choice in choices])
        agreeing = (
            choice.passage.ref_id
            for choice in choices
            if choice.value == chosen.value
            and choice.share >= chosen.share * (0.95 if asked.kind == "boolean" else _AGREEING)
        )
        refs = list(dict.fromkeys((chosen.passage.ref_id, *agreeing)))
        answer = f"{chosen.value} {asked.shown_unit}".strip()
        return quoted(f"“{chosen.passage.text}”", answer, chosen.value, asked.shown_unit, refs)


def plan(question: str, n_queries: int, draw: Draw) -> list[str]:
    """Write queries beside the question: without stop words; its keywords; then its halves and clauses."""
    question = " ".join(question.split())
    kept = content_words(question)
    half = len(kept) // 2
    parts = [
        *re.split(r"[,;:]\s+|\s+(?:and|or|when|while|compared)\s+", question),
        " ".join(kept[:half]),
        " ".join(kept[half:]),
    ]
    keywords = [word for word in kept if word[0].isupper() or any(map(str.isdigit, word)) or len(word) > 6]
    queries = {query.casefold(): query for query in (question, " ".join(kept), " ".join(keywords))}
    for part in draw.shuffled([part for part in parts if len(content_words(part)) > 1]):
        queries.setdefault(part.casefold(), part)
    queries.pop("", None)
    return [query for query in queries.values() if query != question][:n_queries] or [question]
