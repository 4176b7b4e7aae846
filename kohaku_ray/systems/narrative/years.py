"""Find the years that a text names, stated or counted from the last one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kohaku_ray.systems.narrative.novel import CARDINAL, number_of

FIRST_YEAR, LAST_YEAR = 1700, 1999

_NO_YEAR_BEFORE = r"(?<![\d.,/£$#°])(?<!No\. )(?<!number )(?<!page )"
_NO_YEAR_AFTER = (
    r"(?!\d|s\b|[’']s\b|[.,]\d|°|\s*(?:francs?|piastres?|livres?|crowns?|louis|pounds?|dollars?|ducats?|men|miles?|feet|"
    r"foot|leagues?|tons?|toises?|fathoms?|paces|kilometers?|square|houses|inhabitants|souls|guns|steps|years))"
)
_STATED = re.compile(rf"{_NO_YEAR_BEFORE}(?P<year>1[789]\d\d)\b{_NO_YEAR_AFTER}")
_CENTURIES = {"seventeen": 1700, "eighteen": 1800, "nineteen": 1900}
_SPELLED = re.compile(
    rf"\b(?P<century>seventeen|eighteen|nineteen)[\s-](?:hundred(?:\s+and)?[\s-](?P<rest>{CARDINAL})|(?P<tens>"
    r"(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:[\s-](?:one|two|three|four|five|six|seven|eight|nine))?|"
    r"(?:ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen)))\b(?!\s+(?:francs|men|years|miles))",
    re.IGNORECASE,
)
_ANY_YEAR = re.compile(r"1[789]\d\d|[Yy]ear|[Dd]ecade|teen")
_COUNT = rf"(?P<count>\d{{1,2}}|{CARDINAL}|an?)"
_RELATIVE = re.compile(
    rf"\b{_COUNT}\s+(?P<unit>years?|decades?)\s+(?P<way>later|afterwards?|after(?=\s*[,.;:)])|earlier|previously|"
    r"before(?=\s*[,.;:)]))\b|\b(?P<next>the\s+(?:following|next)\s+year|the\s+year\s+after|next\s+year)\b|"
    r"\b(?P<last>the\s+(?:previous|preceding)\s+year|the\s+year\s+before)\b|\b(?P<same>(?:that|the)\s+same\s+year|that\s+year)\b",
    re.IGNORECASE,
)


_LONGEST_OPENING = 40
DATE_WORDS = (
    r"(?:(?:in|on|at|by|during|about|the|that|of|and|year|early|late|spring|summer|autumn|winter|end|beginning|day|then|"
    r"\d+\w*|january|february|march|april|may|june|july|august|september|october|november|december)[\s,]+)*"
)
"""Pattern of what may stand before a year in a date, to be matched without regard to case."""

_PERIOD_OPENS = re.compile(rf"\b(?P<word>from|between)\s+{DATE_WORDS}\Z", re.IGNORECASE)
_UNTIL = r"\b(?:until|till)\s(?:(?:his|her)\s+(?:release|escape|liberation|death)\s+)?"
_PERIOD_GOES_ON = {
    word: re.compile(rf",?\s*{going_on}\s*{DATE_WORDS}", re.IGNORECASE)
    for word, going_on in (
        ("from", rf"(?:\b(?:to|through)\s|{_UNTIL}|[–-])"),
        ("between", r"\band\s"),
        ("", _UNTIL),
    )
}


class YearMention(NamedTuple):
    """A year, from `FIRST_YEAR` to `LAST_YEAR`, as a span of a text, or a period (`join_periods`)."""

    start: int
    end: int
    year: int
    until: int | None = None


def find_years(text: str, anchor: int | None = None) -> tuple[YearMention, ...]:
    """Find the years of a text, in reading order.

    Years are stated, in digits or words, or relative (``ten years later``): these count from the last year before
    them. Sums of money, numbers of houses and decades (1790s) are none.

    Args:
        text: A paragraph or several of one chapter.
        anchor: The last year that the chapter names before this text.
    """
    if not _ANY_YEAR.search(text):
        return ()
    matches = sorted(
        (*_STATED.finditer(text), *_SPELLED.finditer(text), *_RELATIVE.finditer(text)), key=lambda match: match.start()
    )
    mentions: list[YearMention] = []
    for match in matches:
        year = _year_of(match, anchor)
        if year is not None and FIRST_YEAR <= year <= LAST_YEAR:
            mentions.append(YearMention(match.start(), match.end(), year))
            anchor = year
    return tuple(mentions)


def join_periods(text: str, mentions: Sequence[YearMention]) -> tuple[YearMention, ...]:
    """Make one of two years of a text that are the first and last of a period: ``from 1811 to 1816``."""
    joined: list[YearMention] = []
    for mention in mentions:
        last = joined[-1] if joined else None
        if last and last.until is None and last.year <= mention.year:
            opening = _PERIOD_OPENS.search(text[max(0, last.start - _LONGEST_OPENING) : last.start])
            word = opening["word"].lower() if opening else ""
            if _PERIOD_GOES_ON[word].fullmatch(text, last.end, mention.start):
                start = last.start - len(opening[0]) if opening else last.start
                joined[-1] = YearMention(start, mention.end, last.year, mention.year)
                continue
        joined.append(mention)
    return tuple(joined)


def year_anchors(paragraphs: Iterable[tuple[str, str]]) -> list[int | None]:
    """For each paragraph (chapter, text), in reading order, the last year that its chapter names before it."""
    anchors: list[int | None] = []
    chapter, anchor = "", None
    for name, text in paragraphs:
        if name != chapter:
            chapter, anchor = name, None
        anchors.append(anchor)
        years = find_years(text, anchor)
        anchor = years[-1].year if years else anchor
    return anchors


def _year_of(match: re.Match[str], anchor: int | None) -> int | None:
    """The year that a text states, or that it counts from the last one; None: it is none."""
    if match.re is _STATED:
        return int(match["year"])
    if match.re is _SPELLED:
        rest = number_of(match["rest"] or match["tens"])
        return None if rest is None or rest > 99 else _CENTURIES[match["century"].lower()] + rest
    if anchor is None:
        return None
    if match["same"]:
        return anchor
    if match["next"] or match["last"]:
        return anchor + (1 if match["next"] else -1)
    count = 1 if match["count"].lower() in ("a", "an") else number_of(match["count"]) or 0
    years = count * (10 if match["unit"].lower().startswith("decade") else 1)
    return anchor + (years if match["way"].lower().startswith(("later", "after")) else -years)
