"""Citations ``[id / netloc / date]`` in a model's prose: checked against the context, unknown ones cut out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kohaku_ray.systems.hybrid.texts import Text, plain

_BRACKET = re.compile(r"([ \t\u00a0\u202f]{0,4})\[([^\[\]]{1,2000})\]")
_BETWEEN = re.compile(r"\s*[;|]\s*")
_SLASH = re.compile(r"\s/\s|/")
_LABEL = re.compile(r"^(?:id|ref_id)\s*[=:]\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cited:
    """Prose whose citations all stand in the context.

    Attributes:
        text: The prose; citations have the form of the texts' headings.
        ref_ids: What is cited, in order of first citation.
        cut: Citations that were cut out, as they were written.
    """

    text: str
    ref_ids: tuple[str, ...]
    cut: tuple[str, ...]


def check_citations(prose: str, texts: Iterable[Text]) -> Cited:
    """Read the citations of a prose.

    A bracket is a citation when it holds a slash, or nothing but the id of a text; several may share a bracket,
    separated by semicolons. The id counts, whatever is said of site and date. Other brackets stay.

    Args:
        prose: What a model wrote.
        texts: What it was shown.
    """
    known = {plain(text.ref_id).casefold(): text for text in texts}
    cited: dict[str, None] = {}
    cut: list[str] = []

    def checked(bracket: re.Match[str]) -> str:
        marks, is_citation = [], False
        for part in _BETWEEN.split(bracket[2].strip()):
            text = _named(part, known)
            if text is not None:
                marks.append(text.mark)
                cited.setdefault(text.ref_id)
            elif "/" in part:
                cut.append(f"[{part}]")
            is_citation = is_citation or text is not None or "/" in part
        if not is_citation:
            return bracket[0]
        return f"{bracket[1]}{' '.join(dict.fromkeys(marks))}" if marks else ""

    return Cited(_BRACKET.sub(checked, prose).strip(), tuple(cited), tuple(cut))


def without_citations(prose: str) -> str:
    """Drop every bracket that holds a slash, such as a citation: its id and date are no numbers of the answer."""
    return _BRACKET.sub(lambda bracket: " " if "/" in bracket[2] else bracket[0], prose)


def _named(part: str, known: dict[str, Text]) -> Text | None:
    """Find the text that a part of a bracket names: an id may hold slashes itself."""
    bare = _LABEL.sub("", " ".join(part.split())).casefold()
    ends = [slash.start() for slash in _SLASH.finditer(bare)][:16]
    return next((known[name] for end in (*ends, len(bare)) if (name := bare[:end].strip(" '\"")) in known), None)
