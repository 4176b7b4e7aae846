"""Which sentences say that something happened, and which deny, suppose, dream, ask or report it."""

from __future__ import annotations

import re
from collections.abc import Sequence

Span = tuple[int, int]

_QUOTED = re.compile(r"“[^”]*(?:”|\Z)|\"[^\"]*(?:\"|\Z)|«[^»]*(?:»|\Z)")
_DREAM = re.compile(
    r"\b(?:dream(?:s|t|ed|ing)?|nightmares?|visions?|hallucinat\w+|deliri\w+|fancied|imagin\w+|pictured)\b", re.I
)
_AWAKE = re.compile(r"\b(?:awoke|woke|wakes|awakened|waking|in reality|in truth)\b", re.I)
_DENIED = re.compile(
    r"\b(?:not|never|neither|nor|no\s+longer|nobody|no\s+one|none|without|hardly|scarcely|barely|almost|nearly|narrowly|"
    r"cannot|fail(?:s|ed)?\s+to|refus(?:es|ed|ing)?\s+to|declin(?:es|ed)\s+to|avoid(?:ed|ing)?|far\s+from|rather\s+than|"
    r"instead\s+of)\b|n[’']t\b",
    re.I,
)
_SUPPOSED = re.compile(
    r"(?<!['’])\b(?:if|unless|whether|would|could|might|may|should|shall|will|must|ought|as\s+though|lest|in\s+case|perhaps|maybe|"
    r"possibly|probably|hop(?:es|ed|ing)|wish(?:es|ed|ing)?|intend(?:s|ed|ing)?|plan(?:s|ned|ning)?|vow(?:s|ed)?|"
    r"promis(?:es|ed|ing)|threaten(?:s|ed|ing)?|fear(?:s|ed|ing)?|expect(?:s|ed|ing)?|want(?:s|ed)?|decid(?:es|ed)\s+to|"
    r"tr(?:ies|ied)\s+to|attempt(?:s|ed|ing)?|prepar(?:es|ed|ing)|about\s+to|on\s+the\s+point\s+of|suppose[ds]?|in\s+order\s+to)\b",
    re.I,
)
_CONDITIONAL = re.compile(r"(?<!['’])\b(?:if|unless|as\s+though|whether|would|could|might|suppose)\b|\A\W*had\b", re.I)
_REPORTED = re.compile(
    r"\b(?:sa(?:id|y|ys|ying)|t(?:old|ells)|heard|hears|believ\w+|thought|thinks|claim\w*|rumou?r\w*|report\w*|reputed\w*|"
    r"alleg\w+|pretend\w*|according\s+to|presum\w+|supposed|no\s+doubt|doubtless|suspect\w*|declar\w+|announc\w+|assur\w+|swore|swears|insist\w*|"
    r"convinced|legends?|gossip|whisper\w*|lied|lies|false(?:ly)?|feign\w*|fak(?:es|ed|ing)|"
    r"mistaken(?:ly)?|affirm\w*|asser\w+|stories|tale|supposedly|ostensibly|apparently|seemingly|as\s+it\s+seemed|left\s+for\s+dead|given\s+up|"
    r"read\s+that|letters?\s+said|learn(?:s|ed|t)\s+that|insinuat\w*|hint\w*|\w+ed\s+that)\b",
    re.I,
)
_INFINITIVE = re.compile(r"\bto\s+(?:be\s+|have\s+(?:been\s+)?)?(?:\w+ly\s+)?\Z", re.I)
_SEGMENT = re.compile(r"[;:—]")
_CLAUSE = re.compile(
    r"[;:—]|,?\s+(?:but|and|yet|though|although|when|while|until|till|because|since|then|who|which)\s+|,", re.I
)


def unasserted(text: str) -> tuple[Span, ...]:
    """Spans of a text that tell what somebody says or dreams: quotations, and dreams until somebody wakes.

    Args:
        text: One paragraph or several; a quotation that is not closed lasts to its end.
    """
    spans = [match.span() for match in _QUOTED.finditer(text)]
    for dream in _DREAM.finditer(text):
        awake = _AWAKE.search(text, dream.end())
        first = max(text.rfind(mark, 0, dream.start()) for mark in ".!?\n") + 1
        spans.append((first, awake.start() if awake else len(text)))
    return tuple(spans)


def is_asserted(sentence: str, start: int, end: int) -> bool:
    """Whether a sentence says of itself that what stands at a span happened.

    Args:
        sentence: Without quotations and dreams (`unasserted`).
        start: First character of the words for what happened.
        end: One past the last.

    Returns:
        False for a question, for what is reported, believed, feigned or conditional between two semicolons, colons or
        dashes, for what stands behind a negation or in a hypothetical clause, and for an infinitive (planned to marry).
    """
    first = max((cut.end() for cut in _SEGMENT.finditer(sentence, 0, start)), default=0)
    last = _SEGMENT.search(sentence, end)
    segment = sentence[first : last.start() if last else len(sentence)]
    if sentence.rstrip("”\"’' ").endswith("?") or _REPORTED.search(segment) or _CONDITIONAL.search(segment):
        return False
    before = sentence[first:start]
    clause = before[max((cut.end() for cut in _CLAUSE.finditer(before)), default=0) :] + sentence[start:end]
    return not (_DENIED.search(clause) or _SUPPOSED.search(clause) or _INFINITIVE.search(before))


def overlaps(spans: Sequence[Span], start: int, end: int) -> bool:
    """Whether a span touches one of others."""
    return any(first < end and start < last for first, last in spans)
