"""What all offline baselines share: replies computed from a request's variables and seed, without a model.

They run everything offline and are what models are compared with; none of them knows a data set.
"""

from __future__ import annotations

import json
import math
import random
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.index.terms import stop_words
from kohaku_ray.models.request import CHARS_PER_TOKEN, ChatRequest
from kohaku_ray.records import Reply

_NEAR_BEST = 0.12  # how far below the best score a choice may be and still be drawn
_SOFTNESS = 0.08  # score difference that is a factor of e in odds at temperature 1
_EVERYWHERE = 0.3  # weight of a term that every passage has: its presence says little, its absence much
_UNKNOWN_NAME = 1.2  # factor of a name that no passage has: it suggests that nothing answers
_UNKNOWN_WORD = 0.6  # factor of an ordinary word that no passage has: as often a paraphrase
_AROUND = (1.0, 0.5, 0.25)  # of a term's weight: in the passage, in the sentences beside it, elsewhere in the snippet

_T = TypeVar("_T")


class Baseline(ABC):
    """A stand-in for a model: its replies are JSON, and depend on the request's variables and seed alone."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Counts up when the same request would get another reply: it is part of the ledger's keys."""
    needs: ClassVar[Mapping[str, tuple[str, ...]]]
    """The variables that each role needs."""

    abstain_below: ClassVar[float] = 0.35
    """Share of the question's weighted terms that a sentence must cover, or the answer is blank."""

    def __init__(self, window_tokens: int = 131072) -> None:
        """Refuse longer prompts, at four characters per token."""
        self._window_tokens = window_tokens

    @property
    def identity(self) -> str:
        """The rules and their settings."""
        return f"{self.name}/{self.version} abstain_below={self.abstain_below:g} window_tokens={self._window_tokens}"

    @abstractmethod
    def reply(self, variables: Mapping[str, Any], draw: Draw) -> Any:
        """Write a reply's JSON value for ``variables["role"]``."""

    async def chat(self, request: ChatRequest) -> Reply:
        """Reply by ``variables["role"]``; in a role that it does not know, with the least value that the schema allows.

        Raises:
            ContextOverflowError: The prompt is longer than the window.
            ModelError: The request lacks variables that a known role needs.
        """
        n_tokens = request.n_chars // CHARS_PER_TOKEN
        if n_tokens > self._window_tokens:
            raise ContextOverflowError(
                f"the prompt has about {n_tokens} tokens but window_tokens of the {self.name} backend is "
                f"{self._window_tokens}: lower the context budget or raise window_tokens"
            )
        variables = request.variables or {}
        role = str(variables.get("role"))
        if missing := [name for name in self.needs.get(role, ()) if name not in variables]:
            raise ModelError(f"the {self.name} backend needs {', '.join(missing)} among the request's variables")
        if role in self.needs:
            value = self.reply(variables, Draw(request.seed, request.temperature))
        else:
            value = least_value(request.schema or {"type": "string"})
        text = json.dumps(value, ensure_ascii=False)
        return Reply(text, prompt_tokens=n_tokens, completion_tokens=len(text) // CHARS_PER_TOKEN)

    async def close(self) -> None:  # noqa: B027  # no stand-in has anything open
        """Nothing is open."""


DUMMY_TEXT = "[dummy text of the offline stand-in]"
"""A text that no model wrote, in replies and in the prompts that are made of them."""


class Dummy(Baseline):
    """Stands in for models of a system that declares nothing offline: every role gets the schema's least value."""

    name, version, needs = "dummy", 2, {}

    def reply(self, variables: Mapping[str, Any], draw: Draw) -> Any:
        """Never asked: it knows no role."""
        raise NotImplementedError


def least_value(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None) -> Any:
    """Make a small value that a JSON schema allows; texts are `DUMMY_TEXT` (no pattern, no ``allOf``)."""
    defs = schema.get("$defs", {}) if defs is None else defs
    if "$ref" in schema:
        return least_value(defs[schema["$ref"].rpartition("/")[2]], defs)
    for choices in ("enum", "anyOf", "oneOf"):
        if schema.get(choices):
            first = schema[choices][0]
            return first if choices == "enum" else least_value({**schema, choices: None, **first}, defs)
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {
            name: least_value(property_schema, defs) for name, property_schema in schema.get("properties", {}).items()
        }
    if kind == "array":
        return [least_value(schema.get("items", {}), defs) for _ in range(schema.get("minItems", 0))]
    if kind in ("number", "integer"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return min(low, schema.get("maximum", low))
    if kind == "string":
        return DUMMY_TEXT.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
    return False if kind == "boolean" else None


class Draw:
    """Choices that a seed and a temperature decide."""

    def __init__(self, seed: int, temperature: float) -> None:
        """Start the seed's random numbers."""
        self._random, self._temperature = random.Random(seed), temperature  # noqa: S311  # a draw, not a secret

    def pick(self, ranked: Sequence[_T], scores: Sequence[float]) -> _T:
        """Take the first, or draw among the near-best with odds that fall with the distance from it."""
        if self._temperature <= 0:
            return ranked[0]
        odds = [
            math.exp((score - scores[0]) / (_SOFTNESS * self._temperature)) if score >= scores[0] - _NEAR_BEST else 0.0
            for score in scores
        ]
        return self._random.choices(ranked, odds)[0]

    def shuffled(self, items: Sequence[_T]) -> list[_T]:
        """Keep the order, or above temperature 0 draw one."""
        return self._random.sample(items, len(items)) if self._temperature > 0 else list(items)


_STOP = frozenset(
    re.findall(
        r"\w+",
        "true false approximately approximate estimated estimate reported name called term given total share "
        "percentage percent range value amount number take takes took use uses used make makes made many much",
    )
)
_WORD = re.compile(r"\d+(?:[.,]\d+)*[^\W\d_]*\d*|[^\W\d_]+\d*(?:[^\W_]+)?")
_SUFFIX = re.compile(
    r"(?<=\w{4})(?:i[sz]ations?|ational|ations?|ptions?|tions?|ments?|ances?|ences?|ings?|i[sz]ed|i[sz]es?|ies|ied|ers|ed|es|er|ly|al|s|e)\Z"
)
_CO2 = re.compile(r"(?<=CO) ?2(?: (?=e\b))?")
_TABLE_ROW = re.compile(r"\s*\|(.+)\|\s*\Z")


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence or table cell of a document's snippet, on one line.

    Attributes:
        words: Its words' stems and where each begins.
        layers: Stems of it, of the sentences on either side, and of the whole snippet.
    """

    ref_id: str
    text: str
    words: tuple[tuple[str, int], ...]
    layers: tuple[frozenset[str], ...]


def normalise(text: str) -> str:
    """Replace compatibility characters, and join CO2e where a PDF has its subscript apart."""
    return _CO2.sub("2", unicodedata.normalize("NFKC", text))


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """A word's rough stem; a number loses its thousands separators."""
    lower = word.lower()
    return lower.replace(",", "") if lower[0].isdigit() else _SUFFIX.sub("", lower)


def words_of(text: str) -> tuple[tuple[str, int], ...]:
    """A text's words as stems, each with where it begins; ``1,287`` and ``0.18`` stay whole."""
    return tuple((stem(word[0]), word.start()) for word in _WORD.finditer(text))


def content_words(text: str) -> tuple[str, ...]:
    """A text's words without stop words, as written."""
    return tuple(word for word in _WORD.findall(text) if word.lower() not in stop_words() | _STOP)


@lru_cache(maxsize=1024)
def passages_of(ref_id: str, text: str) -> tuple[Passage, ...]:
    """Cut one snippet into sentences and table cells; members and attempts share the work."""
    texts = list(_texts(normalise(text)))
    words = [words_of(text) for text in texts]
    stems = [frozenset(stem for stem, _ in of_text) for of_text in words]
    near = [stems[i].union(*stems[max(0, i - 1) : i + 2]) for i in range(len(texts))]
    every = frozenset().union(*stems)
    return tuple(Passage(ref_id, texts[i], words[i], (stems[i], near[i], every)) for i in range(len(texts)))


def _texts(text: str) -> Iterator[str]:
    """Yield sentences, and table cells with their row's first cell and their column's title."""
    prose: list[str] = []
    header: list[str] = []
    for line in text.split("\n"):
        row = _TABLE_ROW.match(line)
        cells = [cell.strip() for cell in row[1].split("|")] if row else []
        if not row:
            prose.append(line)
        elif header and any(cell.strip(":- ") for cell in cells):
            for title, cell in zip(header[1:], cells[1:], strict=False):
                named, _, unit = title.rstrip(")").partition(" (")
                yield f"{header[0]} {cells[0]}, {named}: {cell} {unit}".rstrip()
        header = header or cells if row else []
    joined = "\n".join(prose)
    yield from (" ".join(joined[span.start : span.end].split()) for span in split_sentences(joined))


def weigh(factors: Mapping[str, float], passages: Sequence[Passage]) -> dict[str, float]:
    """Weigh terms by their smoothed inverse document frequency over passages (Robertson 2004), times their factors."""
    counts = Counter(term for passage in passages for term in passage.layers[0])
    weights = {}
    for term, factor in factors.items():
        n = counts[term]
        idf = _EVERYWHERE + math.log1p((len(passages) - n + 0.5) / (n + 0.5))
        weights[term] = idf * factor * (1.0 if n else _UNKNOWN_WORD if factor == 1.0 else _UNKNOWN_NAME)
    return weights


def coverage(weights: Mapping[str, float], passage: Passage) -> float:
    """Weighted share of the terms that a passage covers; one that stands only beside it counts less."""
    inner, near, every = passage.layers
    total = sum(weights.values()) or 1.0
    inside, beside, around = _AROUND
    factors = (
        (w, inside if t in inner else beside if t in near else around if t in every else 0.0)
        for t, w in weights.items()
    )
    return sum(weight * factor for weight, factor in factors) / total


def closeness(weights: Mapping[str, float], passage: Passage, start: int, end: int) -> float:
    """How close the found terms are to a span of a passage: 1 if adjacent, towards 0 with the distance in words."""
    here = [index for index, (_, begin) in enumerate(passage.words) if start <= begin < end]
    if not here:
        return 0.0
    best: dict[str, float] = {}
    for index, (term, _) in enumerate(passage.words):
        if term in weights and not here[0] <= index <= here[-1]:
            distance = here[0] - index if index < here[0] else index - here[-1]
            best[term] = max(best.get(term, 0.0), 4.0 / (3.0 + distance))
    total = sum(weights[term] for term in passage.layers[0] if term in weights)
    return sum(weights[term] * near for term, near in best.items()) / total if total else 0.0


def quoted(explanation: str, answer: str, value: str, unit: str, refs: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of an answer, as a model's JSON reply has them."""
    return {
        "explanation": explanation,
        "answer": answer,
        "answer_value": value,
        "answer_unit": unit,
        "ref_id": list(refs),
    }
